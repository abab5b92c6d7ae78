"""Uploaded archives: unpacked only after every entry was looked at; the content is data."""

import io
import zipfile
from pathlib import Path, PurePosixPath

from kareus.errors import MeasurementError

MAX_FILES = 2_000
MAX_BYTES = 512 << 20


def unpack(name: str, content: bytes, folder: Path) -> None:
    """Write an uploaded .zip's files below a folder.

    Args:
        name: The upload's name, for messages.
        content: Its bytes.
        folder: An existing empty folder.

    Raises:
        MeasurementError: It is no .zip, an entry leads out of the folder, or it is too large; then
            nothing was written.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    except zipfile.BadZipFile as error:
        raise MeasurementError(
            f"{name} is not a .zip: zip the folder that holds the measurements"
        ) from error
    if len(entries) > MAX_FILES or sum(entry.file_size for entry in entries) > MAX_BYTES:
        raise MeasurementError(
            f"{name} holds more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB: "
            "import its folder on the server by its path"
        )
    for entry in entries:
        path = PurePosixPath(entry.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise MeasurementError(
                f"{name} holds {entry.filename!r}, which leads out of its folder"
            )
    try:
        for entry in entries:
            target = folder / PurePosixPath(entry.filename.replace("\\", "/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(entry))
    except (zipfile.BadZipFile, RuntimeError, OSError, ValueError) as error:
        raise MeasurementError(f"{name} cannot be unpacked: {error}") from error
