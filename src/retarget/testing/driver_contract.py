"""What every driver must do. Subclass it and give it the two `connect` fixtures.

```python
class TestMine(DriverContract):
    @pytest.fixture
    def connect(self, tmp_path): return lambda: Driver(Config(root=tmp_path))

    @pytest.fixture
    def connect_nowhere(self): return lambda: Driver(Config(root="/proc/none"))
```
"""

from retarget.testing.ending import EndingClauses
from retarget.testing.running import RunningClauses
from retarget.testing.surviving import SurvivingClauses


class DriverContract(RunningClauses, EndingClauses, SurvivingClauses):
    """Every clause, over real launches that report to a real server on this machine."""
