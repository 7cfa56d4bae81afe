"""The contract of all drivers. Subclass it and define the two `connect` fixtures.

```python
class TestMyDriver(DriverContract):
    @pytest.fixture
    def connect(self, tmp_path, links): return lambda: Driver(Config(root=tmp_path), links)

    @pytest.fixture
    def connect_nowhere(self, links): return lambda: Driver(Config(root="/proc/none"), links)
```
"""

from retarget.testing.ending import EndingClauses
from retarget.testing.running import RunningClauses
from retarget.testing.surviving import SurvivingClauses


class DriverContract(RunningClauses, EndingClauses, SurvivingClauses):
    """All clauses, tested with real launches that report to a real server on this machine."""
