"""Display names, descriptions and tags on the command line."""

import json

from tests.conftest import Cli


def test_labels_are_submitted_listed_shown_and_changed(retarget: Cli) -> None:
    labels = ("--display-name", "ResNet 50", "--description", "the big one", "--tag", "team=vision")
    retarget("run", "--name", "a", *labels, "--tag", "stage=trial", "--", "true")
    retarget("run", "--name", "b", "--tag", "team=audio", "--", "true")
    shown = retarget("job", "show", "a").stdout
    for line in ("display name  ResNet 50", "description   the big one"):
        assert line in shown
    assert "tags          stage=trial  team=vision\n" in shown
    table = retarget("job", "list", "--tag", "team").stdout.splitlines()
    assert table[0].split()[:3] == ["NAME", "DISPLAY_NAME", "STATE"]
    assert [row.split()[0] for row in table[1:]] == ["b", "a"]
    one = retarget(
        "job", "list", "--tag", "team=vision", "--columns", "name,display_name,tags.team"
    )
    assert one.stdout.splitlines()[1].split() == ["a", "ResNet", "50", "vision"]
    assert retarget("job", "list", "--tag", "team=none").stderr == "no matching jobs\n"

    changed = retarget("job", "update", "a", "--display-name", "", "--tag", "stage=", "--json")
    view = json.loads(changed.stdout)
    assert (view["display_name"], view["description"]) == ("a", "the big one")
    assert view["tags"] == {"team": "vision"}
    assert "DISPLAY_NAME" not in retarget("job", "list").stdout
    rerun = retarget("job", "rerun", "a", "-d", "--json", "--tag", "stage=final")
    assert json.loads(rerun.stdout)["tags"] == {"team": "vision", "stage": "final"}
    assert retarget("job", "wait", json.loads(rerun.stdout)["name"]).returncode == 0
    nothing = retarget("job", "update", "a")
    assert (nothing.returncode, len(nothing.stderr.splitlines())) == (2, 1)
    assert "nothing to change; pass --display-name, --description or --tag" in nothing.stderr
