"""Reads the scalars of TensorBoard's event files: records of a length, a checksum, a message and a checksum."""

from pathlib import Path


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars in ``directory/tensorboard`` by name, each as (step, value) in the order of steps."""
    from tensorboardX.event_file_writer import EventFileWriter  # noqa: F401 - its package has the format's messages
    from tensorboardX.proto.event_pb2 import Event

    kept: dict[str, list[tuple[int, float]]] = {}
    for path in (directory / "tensorboard").iterdir():
        rest = path.read_bytes()
        while rest:
            size = int.from_bytes(rest[:8], "little")
            event = Event.FromString(rest[12 : 12 + size])
            rest = rest[12 + size + 4 :]
            for value in event.summary.value:
                kept.setdefault(value.tag, []).append((event.step, value.simple_value))
    return {name: sorted(values) for name, values in kept.items()}
