"""The files of examples/cluster/, and the changes that their users make."""

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"
SLURM = (FOLDER / "slurm.sh").read_text()


def slurm_script(folder: Path, command: str, hosts: str = "trainer rollout") -> Path:
    """The batch script for a topology ``run.toml`` in the folder, whose runs are there too."""
    text = SLURM
    for old, new in (
        ("(/shared/mine/.venv/bin/agent-rl)", f"({command})"),
        ("/shared/mine", str(folder)),
        ("/tmp/mine", str(folder / "run")),
        ("(trainer rollout)", f"({hosts})"),
    ):
        assert old in text
        text = text.replace(old, new)
    path = folder / "job.sh"
    path.write_text(text)
    return path


def manifests() -> dict[tuple[str, str], Any]:
    """The manifests by kind and name."""
    text = (FOLDER / "kubernetes.yaml").read_text()
    return {(found["kind"], found["metadata"]["name"]): found for found in yaml.safe_load_all(text)}


def topology_texts() -> dict[str, str]:
    """The topology that both files are written for, and what the pods lay over it."""
    texts: dict[str, str] = manifests()["ConfigMap", "mine-topology"]["data"]
    return texts
