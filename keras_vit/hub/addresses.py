"""Addresses of files: their URL, and their path in the cache and on a mirror."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import re
import urllib.parse

SCHEMES = ("https", "http", "gs", "hf", "file")

# Of a path in a URL everything else is percent-encoded, "+" too: bucket names use it, and
# some servers read a raw "+" as a space. "%" stays, for a path may be encoded already.
_SAFE_IN_PATH = "/%-._~!$&'()*,;=:@"
_PUBLIC_BUCKETS = "https://storage.googleapis.com/"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_OWNER_OR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PATH_PART = re.compile(r'(?!\.{1,2}$)[^\x00-\x1f<>:"\\|?*]+')
_LONGEST_NAME = 200  # bytes; file systems allow 255, and ".lock" and the like are added
_LONGEST_PATH = 1000  # bytes; systems allow 4096 with the folder of the cache, some fewer


@dataclasses.dataclass(frozen=True)
class HubAddress:
    """A file of a repository on the Hugging Face hub: `hf://owner/name[@revision][/file]`.

    Args:
        repository: `"owner/name"`.
        revision: Branch, tag or commit, or `None` for the newest.
        filename: Path of the file in the repository, or `None` where the address names none.
    """

    repository: str
    revision: str | None = None
    filename: str | None = None


def is_address(text: object) -> bool:
    """Whether `text` is an address, rather than a path or a tag."""
    return isinstance(text, str) and text.partition("://")[0] in SCHEMES and "://" in text


def parse_hub_address(address: str) -> HubAddress:
    """Reads an address of the form `hf://owner/name[@revision][/file]`.

    Raises:
        ValueError: If it has another form.
    """
    rest = address.removeprefix("hf://")
    owner, _, rest = rest.partition("/")
    name, _, filename = rest.partition("/")
    name, at, revision = name.partition("@")
    names_are_good = all(_OWNER_OR_NAME.fullmatch(part) for part in (owner, name))
    if not address.startswith("hf://") or not names_are_good or (at and not revision):
        raise ValueError(
            "An address on the Hugging Face hub has the form hf://owner/name, "
            "hf://owner/name@revision or hf://owner/name@revision/file. "
            f"Received: {address!r}."
        )
    revision = urllib.parse.unquote(revision)  # refs%2Fpr%2F1 is the branch refs/pr/1
    for path in (revision, filename):  # both are paths in the cache too
        if path and not all(_PATH_PART.fullmatch(part) for part in path.split("/")):
            raise ValueError(
                "The revision and the file of an address are paths without '..', empty parts or "
                f'any of <>:"\\|?*. Received: {address!r}.'
            )
    return HubAddress(f"{owner}/{name}", revision or None, filename or None)


def download_url(address: str) -> str:
    """Converts a `https://`, `http://` or `gs://` address to the URL of its download.

    A `gs://bucket/path` is public over HTTPS. Its path is percent-encoded, because some servers
    read the `+` of `imagenet21k+imagenet2012` as a space.

    Args:
        address: The address.

    Returns:
        A URL that starts with `https://`, or `http://` on this machine.

    Raises:
        ValueError: If the address has another scheme, or is `http://` to another machine.
    """
    scheme, _, rest = address.partition("://")
    if scheme == "gs":
        return _PUBLIC_BUCKETS + urllib.parse.quote(rest, safe=_SAFE_IN_PATH)
    parts = urllib.parse.urlsplit(address)
    if scheme not in ("https", "http") or not parts.hostname:
        raise ValueError(
            "An address to download from starts with https://, gs:// or hf://. "
            f"Received: {address!r}."
        )
    if scheme == "http" and parts.hostname not in _LOOPBACK:
        raise ValueError(
            "Weights are downloaded over https:// only, because http:// lets others change "
            f"them on the way. Received: {address!r}. If your own server has no https, download "
            "the file yourself and pass its path, or set KERAS_VIT_MIRROR."
        )
    path = urllib.parse.quote(parts.path, safe=_SAFE_IN_PATH)
    return urllib.parse.urlunsplit((scheme, parts.netloc, path, parts.query, ""))


def cache_name(url: str) -> pathlib.PurePosixPath:
    """Path of the file of a URL in the cache and on a mirror: its host, then its path.

    `https://storage.googleapis.com/vit_models/sam/ViT-B_16.npz` is kept as
    `storage.googleapis.com/vit_models/sam/ViT-B_16.npz`. No URL leads out of the cache.

    Raises:
        ValueError: If the URL names no file.
    """
    parts = urllib.parse.urlsplit(url)
    names = [_safe_name(part) for part in urllib.parse.unquote(parts.path).split("/") if part]
    if not names or parts.path.endswith("/"):
        raise ValueError(f"The address must end in the name of a file. Received: {url!r}.")
    if parts.query:
        stem, dot, suffix = names[-1].rpartition(".")
        names[-1] = _safe_name(f"{stem or suffix}-{parts.query}{dot + suffix if stem else ''}")
    if sum(len(name.encode()) for name in names) > _LONGEST_PATH:
        names = [hashlib.sha256(parts.path.encode()).hexdigest(), names[-1]]
    return pathlib.PurePosixPath(_safe_name(parts.netloc), *names)


def mirror_url(mirror: str, url: str) -> str:
    """Converts the URL of a file to that on a mirror, which has the layout of the cache.

    Args:
        mirror: Value of KERAS_VIT_MIRROR: a URL, or a local folder.
        url: URL of the file without a mirror.

    Returns:
        A URL, which starts with `file://` for a folder.

    Raises:
        ValueError: If the mirror is neither.
    """
    name = cache_name(url)
    scheme, is_url, _ = mirror.partition("://")
    if is_url and scheme not in ("https", "http", "file"):
        raise ValueError(
            "KERAS_VIT_MIRROR must be a folder, or a URL that starts with https://, http:// or "
            f"file://. Received: {mirror!r}."
        )
    if is_url:
        return mirror.rstrip("/") + "/" + urllib.parse.quote(str(name), safe=_SAFE_IN_PATH)
    return pathlib.Path(os.path.expanduser(mirror)).absolute().joinpath(*name.parts).as_uri()


def _safe_name(part: str) -> str:
    """Makes a file name that is valid on every system, and never `.` or `..`."""
    name = re.sub(r'[\x00-\x1f<>:"/\\|?*]', "_", part).strip(" ")
    if name.strip(".") == "":
        name = name.replace(".", "_") or "_"
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    start, end = name.encode()[:80], name.encode()[-80:]
    return f"{start.decode(errors='ignore')}-{digest}-{end.decode(errors='ignore')}"
