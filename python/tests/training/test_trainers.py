"""The callbacks under the trainers that they are for, beside the same training without a cap."""

from pathlib import Path

import pytest

from test_scripts import launch

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("script", "module"),
    [("trainer_hugging_face.py", "transformers"), ("trainer_lightning.py", "lightning")],
)
def test_a_trainer_prints_what_it_prints_without(script, module):
    pytest.importorskip(module)
    plain, capped = launch([HERE / script], [HERE / script, "--memory", "16MiB"])
    assert plain.returncode == 0, plain.stderr
    assert capped.returncode == 0, capped.stderr
    assert capped.stdout == plain.stdout
    assert len(plain.stdout.split()) > 3
