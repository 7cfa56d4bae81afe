"""The page about data lists exactly what is excluded by default."""

from retarget.core.exclusions import LARGE_SNAPSHOT_BYTES
from retarget.runner import default_exclusions as names
from tests.docs.markdown import quoted, read, section

_PAGE = "docs/how-to/data.md"


def test_every_default_exclusion_is_documented_and_no_other() -> None:
    lines = [
        line
        for line in section(read(_PAGE), "Excluded by default").split("\n- ")[1:]
        if "job outputs" not in line
    ]
    documented = {word for line in lines for word in quoted(line.partition("\n\n")[0])}
    marks = {*names.ENVIRONMENT_MARKS, *names.HOME_MARKS}
    listed = {*names.ALWAYS, *names.SECRETS, *names.NOT_SECRET, *names.TOOL_FOLDERS}
    assert documented == listed | marks


def test_the_mark_of_downloads_and_the_size_of_large_snapshots_are_documented() -> None:
    assert names.DOWNLOAD_MARK in quoted(section(read(_PAGE), "Excluded by default"))
    assert f"{LARGE_SNAPSHOT_BYTES // 10**6} MB" in section(read(_PAGE), "Large data")
