"""The sentence that a user reads about a failed build, from real output of uv."""

import pytest

from retarget.runner.error_lines import resolver_sentence

_NONE = (
    "Because there is no version of requests==99.0 and you require requests==99.0, "
    "we can conclude that your requirements are unsatisfiable."
)
_NO_INDEX = (
    "Because numpy was not found in the provided package locations and you require numpy<1, "
    "we can conclude that your requirements are unsatisfiable."
)
OUTPUTS = {
    "no such version": (
        "Using Python 3.11.7 environment at: e\n"
        "error: No solution found when resolving dependencies\n"
        f"  cause: {_NONE}\n",
        _NONE,
    ),
    "with a hint": (
        "Using Python 3.11.7 environment at: e\n"
        "error: No solution found when resolving dependencies\n"
        f"  cause: {_NO_INDEX}\n"
        "\n"
        "hint: Packages were unavailable because index lookups were disabled\n",
        _NO_INDEX,
    ),
    "an older uv, in a box": (
        "Using Python 3.11.7 environment at: e\n"
        "  \u00d7 No solution found when resolving dependencies:\n"
        "  ╰─▶ Because there is no version of requests==99.0 and you require\n"
        "      requests==99.0, we can conclude that your requirements are\n"
        "      unsatisfiable.\n",
        _NONE,
    ),
    "an older uv, in a tree": (
        "  \u00d7 Failed to download `x @ https://127.0.0.1:9/x.whl`\n"
        "  ├─▶ Request failed after 3 retries\n"
        "  ╰─▶ Connection refused (os error 111)\n"
        "  help: look at the network\n",
        "Failed to download `x @ https://127.0.0.1:9/x.whl`: Request failed after 3 retries: "
        "Connection refused (os error 111)",
    ),
    "a line that is not a requirement": (
        "error: Couldn't parse requirement in `r.txt` at position 0\n"
        '  cause: no such comparison operator "=", must be one of ~= == != <= >= < > ===\n'
        "         numpy=1.2\n"
        "              ^^^^\n",
        'Couldn\'t parse requirement in `r.txt` at position 0: no such comparison operator "=", '
        "must be one of ~= == != <= >= < > === numpy=1.2",
    ),
    "a build that fails": (
        "Using Python 3.11.7 environment at: e\n"
        "error: The build backend returned an error\n"
        "  cause: Call to `setuptools.build_meta.build_wheel` failed (exit status: 1)\n"
        "\n"
        "         [stderr]\n"
        "         Traceback (most recent call last):\n"
        "         boom: needs a compiler\n",
        "The build backend returned an error: Call to `setuptools.build_meta.build_wheel` failed "
        "(exit status: 1): boom: needs a compiler",
    ),
    "no network": (
        "error: Request failed after 3 retries in 12.0s\n"
        "  cause: Failed to fetch: http://127.0.0.1:9/simple/six/\n"
        "  cause: Connection refused (os error 111)\n",
        "Request failed after 3 retries in 12.0s: Failed to fetch: http://127.0.0.1:9/simple/six/: "
        "Connection refused (os error 111)",
    ),
    "no name server": (
        "error: Request failed after 3 retries in 4.9s\n"
        "  cause: Failed to fetch: https://pypi.org/simple/six/\n"
        "  cause: error sending request for url (https://pypi.org/simple/six/)\n"
        "  cause: client error (Connect)\n"
        "  cause: dns error\n"
        "  cause: Temporary failure in name resolution\n",
        "Request failed after 3 retries in 4.9s: Failed to fetch: https://pypi.org/simple/six/: "
        "error sending request: Temporary failure in name resolution",
    ),
    "one line": (
        "error: No interpreter found for Python 3.99 in managed installations or search path\n",
        "No interpreter found for Python 3.99 in managed installations or search path",
    ),
    "a warning before": (
        "warning: error: is a word in this line\nerror: No virtual environment found\n",
        "No virtual environment found",
    ),
    "something else": ("Killed by the system\n\n", "Killed by the system"),
    "nothing": ("", "no output"),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_the_sentence_is_what_uv_says_is_wrong(case: str) -> None:
    output, sentence = OUTPUTS[case]
    assert resolver_sentence(output) == sentence
