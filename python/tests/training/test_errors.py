"""Too little memory and bad settings give one clear error, and the process lives on."""

import subprocess
import sys

import pytest

BAD = [
    ("enable(memory='12 potatoes', device='host')", "SettingsError", "12 potatoes"),
    ("enable(memory='1KiB', device='host')", "SettingsError", "granularity"),
    ("enable(memory='-1GiB', device='host')", "SettingsError", "-1GiB"),
    ("enable(memory='12MiB', device='hots')", "SettingsError", "hots"),
    ("enable(memory='12MiB', device='cuda:0')", "SettingsError", "device"),
    ("enable(memory='12MiB', device='host', prefer='speed')", "SettingsError", "performance"),
    ("enable(memory='12MiB', device='host', strategy='swop')", "SettingsError", "swap"),
    ("step()", "NotEnabledError", "smartswap.enable"),
    ("stats()", "NotEnabledError", "smartswap.enable"),
    (
        "enable(memory='12MiB', device='host'); smartswap.enable(memory='12MiB', device='host')",
        "AlreadyEnabledError",
        "disable",
    ),
]


def test_out_of_memory_is_survived(compare):
    compare("too_much", 12, settles=False, arguments={"fails": [3, 7, 9]}, plain_arguments={})


def test_an_engine_for_a_part_of_the_run(compare):
    compare(
        "opened_late",
        12,
        settles=False,
        opens=False,
        arguments={"memory": 12 << 20},
        plain_arguments={},
    )


@pytest.fixture(scope="module")
def outcomes():
    """What each bad call raises, all in one process."""
    lines = ["import smartswap"]
    for call, _, _ in BAD:
        lines += [
            "try:",
            f"    smartswap.{call}",
            "    print('nothing')",
            "except Exception as error:",
            "    print(type(error).__name__, str(error).replace(chr(10), ' '))",
        ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("place", range(len(BAD)), ids=[call for call, _, _ in BAD])
def test_bad_input(outcomes, place):
    _, error, word = BAD[place]
    assert outcomes[place].startswith(error + " "), outcomes[place]
    assert word in outcomes[place]


def test_an_unknown_flag_is_named():
    words = [sys.executable, "-m", "smartswap", "--memroy", "12MiB", "script.py"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert "--memroy" in done.stderr
    assert "--memory" in done.stderr
