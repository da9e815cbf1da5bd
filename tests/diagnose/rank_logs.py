"""What ``diagnose`` says of logs that lie in one folder, a file each."""

from __future__ import annotations

from pathlib import Path

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.host.input.collection import collected
from torchtune_sys.model.diagnosis import Diagnosis


def of(tmp_path: Path, **texts: str) -> Diagnosis:
    for name, text in texts.items():
        (tmp_path / f"{name}.log").write_text(text)
    return diagnose(collected([str(tmp_path)]))
