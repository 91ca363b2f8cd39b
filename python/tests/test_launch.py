"""A script under `python -m smartswap` sees what it sees under `python`."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from smartswap import command
from smartswap.errors import SettingsError

SOURCE = Path(__file__).parents[1]

# Runs the launcher alone, without PyTorch and without an engine.
RUNNER = f"""
import sys, types
package = types.ModuleType("smartswap")
package.__path__ = [{str(SOURCE / "smartswap")!r}]
sys.modules["smartswap"] = package
from smartswap import launch
words = sys.argv[1:]
if words[0] == "-m":
    launch.run(launch.load_module(words[1], words[2:]))
else:
    launch.run(launch.load_script(words[0], words[1:]))
"""


def run(words, cwd, ours):
    start = ["-c", RUNNER] if ours else []
    command_line = [sys.executable, *start, *words]
    return subprocess.run(command_line, cwd=cwd, capture_output=True, text=True, timeout=60)


def assert_alike(words, cwd):
    plain, ours = run(words, cwd, False), run(words, cwd, True)
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr
    assert ours.returncode == plain.returncode
    return ours


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


LOOK = """
    import sys
    print(__name__, sys.argv, sys.path[0], __file__, __package__, __spec__ and __spec__.name)
    print(sys.modules["__main__"].__dict__ is globals(), __builtins__ is sys.modules["builtins"])
    import beside
    print(beside.VALUE)
"""


def test_script_sees_its_own_names_and_arguments(tmp_path):
    write(tmp_path, "inner/look.py", LOOK)
    write(tmp_path, "inner/beside.py", "VALUE = 7")
    assert_alike(["inner/look.py", "--memory", "x", "-m"], tmp_path)
    shown = assert_alike([str(tmp_path / "inner" / "look.py")], tmp_path)
    assert "7" in shown.stdout


def test_module_and_package_see_their_own_names(tmp_path):
    write(tmp_path, "look.py", LOOK)
    write(tmp_path, "beside.py", "VALUE = 7")
    write(tmp_path, "pack/__init__.py", "print('package')")
    write(tmp_path, "pack/__main__.py", LOOK + "    from . import part\n")
    write(tmp_path, "pack/part.py", "print(__name__)")
    assert "7" in assert_alike(["-m", "look", "a", "-b"], tmp_path).stdout
    assert "pack.part" in assert_alike(["-m", "pack"], tmp_path).stdout
    assert "package" in assert_alike(["-m", "pack.__main__"], tmp_path).stdout


def test_folder_runs_its_main(tmp_path):
    write(tmp_path, "folder/__main__.py", "import sys, beside; print(sys.argv, sys.path[0])")
    write(tmp_path, "folder/beside.py", "")
    ours, plain = (run(["folder", "x"], tmp_path, who) for who in (True, False))
    assert ours.stdout == plain.stdout


@pytest.mark.parametrize(
    "ending",
    [
        "raise SystemExit(3)",
        "raise SystemExit('gone')",
        "import sys; sys.exit()",
        "def f():\n    raise ValueError('bad')\nf()",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e",
        "import no_such_module",
        "x = (1,\n",
        "import atexit; atexit.register(print, 'end'); raise RuntimeError('a')",
    ],
)
def test_endings_are_those_of_python(tmp_path, ending):
    write(tmp_path, "ends.py", ending)
    ours = assert_alike(["ends.py"], tmp_path)
    assert "launch.py" not in ours.stderr


def test_a_module_that_is_not_there_is_one_line():
    words = [sys.executable, "-m", "smartswap", "--device", "host", "--memory", "16MiB"]
    done = subprocess.run(
        [*words, "-m", "no_such_module"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 2
    says = "smartswap: there is no module 'no_such_module' that could be run\n"
    assert done.stderr == says, done.stderr


def test_keyboard_interrupt_ends_like_under_python(tmp_path):
    script = """
        import os, signal
        # A job that a shell put in the background begins with the signal ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGINT)
        while 1: 0
    """
    write(tmp_path, "ends.py", script)
    ours, plain = (run(["ends.py"], tmp_path, who) for who in (True, False))
    assert "launch.py" not in ours.stderr
    assert ours.stderr == plain.stderr
    assert ours.returncode == plain.returncode


def test_pickles_and_spawned_children_find_main(tmp_path):
    script = """
        import multiprocessing, pickle
        class Point:
            x = 4
        def work(queue):
            queue.put(Point())
        if __name__ == "__main__":
            assert pickle.loads(pickle.dumps(Point())).x == 4
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            child = context.Process(target=work, args=(queue,))
            child.start()
            print(queue.get().x)
            child.join()
            print(child.exitcode)
    """
    write(tmp_path, "spawns.py", script)
    assert assert_alike(["spawns.py"], tmp_path).stdout == "4\n0\n"


def test_command_line_leaves_the_scripts_flags_alone(tmp_path):
    script = write(tmp_path, "train.py", "")
    words = ["--memory", "24GiB", "--prefer=memory", str(script), "--memory", "1", "--report"]
    call = command.parse(words)
    assert call.wishes == {"memory": "24GiB", "prefer": "memory"}
    assert call.load is not None
    words = ["--manual-steps", "--verify", "--log-level", "info", "-m", "train", "--x"]
    call = command.parse(words)
    assert call.wishes == {"manual_steps": True, "verify": True, "log_level": "info"}
    assert command.parse(["-h"]).shows == "help"
    assert "--host-memory SIZE" in command.help_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--memroy", "1GiB", "train.py"], "did you mean --memory"),
        (["--unheard"], "--help lists all"),
        (["--memory"], "needs a value"),
        (["-m"], "needs a module"),
        ([], "which script"),
        (["no_such_script.py"], "no script 'no_such_script.py'"),
        (["--log-level", "infos", "x.py"], "did you mean info"),
        (["--verfiy", "x.py"], "did you mean --verify"),
    ],
)
def test_bad_command_lines_say_how_to_mend_them(words, says):
    with pytest.raises(SettingsError, match=says):
        command.parse(words)


def test_bad_flags_leave_with_code_2(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--memory", "much", __file__])
    assert ended.value.code == 2
    assert "'much' is not a size" in capsys.readouterr().err
