"""Addresses: what they mean, where they lead, where their files are kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_vit.hub.addresses import (
    HubAddress,
    cache_name,
    download_url,
    is_address,
    mirror_url,
    parse_hub_address,
)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        (
            "gs://vit_models/imagenet21k+imagenet2012/R50+ViT-B_16.npz",
            "https://storage.googleapis.com/vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz",
        ),
        ("https://host/a+b/c%2Bd.npz", "https://host/a%2Bb/c%2Bd.npz"),
        ("https://host/a b.npz?x=1#top", "https://host/a%20b.npz?x=1"),
        ("http://localhost:8000/a.npz", "http://localhost:8000/a.npz"),
    ],
)
def test_download_url(address, url):
    assert download_url(address) == url
    assert download_url(url) == url


@pytest.mark.parametrize("address", ["ftp://host/a.npz", "https:///a.npz", "a.npz"])
def test_download_url_refuses_other_schemes(address):
    with pytest.raises(ValueError, match="starts with https://, gs:// or hf://"):
        download_url(address)


def test_download_url_refuses_http_to_other_machines():
    with pytest.raises(ValueError, match="over https:// only"):
        download_url("http://example.org/a.npz")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("hf://timm/vit.augreg", HubAddress("timm/vit.augreg")),
        ("hf://a/b@v1", HubAddress("a/b", "v1")),
        ("hf://a/b@refs%2Fpr%2F3/x.npz", HubAddress("a/b", "refs/pr/3", "x.npz")),
        ("hf://a/b/sub/x.safetensors", HubAddress("a/b", None, "sub/x.safetensors")),
    ],
)
def test_parse_hub_address(address, expected):
    assert parse_hub_address(address) == expected


@pytest.mark.parametrize("address", ["hf://a", "hf:///b", "hf://a/b@", "hf://a b/c", "gs://a/b"])
def test_parse_hub_address_says_which_form_it_needs(address):
    with pytest.raises(ValueError, match="has the form hf://owner/name"):
        parse_hub_address(address)


def test_is_address():
    assert is_address("hf://a/b") and is_address("gs://a/b") and is_address("file:///a")
    assert not is_address("augreg_in21k") and not is_address("/tmp/a.npz")
    assert not is_address("C://weights.npz") and not is_address(None)


def test_cache_name_keeps_queries_apart_and_the_suffix_last():
    first, second = (str(cache_name(f"https://h/a.npz?token={n}")) for n in (1, 2))
    assert first != second and first.endswith(".npz")


@pytest.mark.parametrize("url", ["https://host/", "https://host", "https://host/folder/"])
def test_cache_name_needs_a_file(url):
    with pytest.raises(ValueError, match="end in the name of a file"):
        cache_name(url)


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=300).filter(lambda s: s.strip("/")))
def test_no_address_leads_out_of_the_cache(path):
    try:
        name = cache_name(download_url(f"gs://bucket/{path}"))
    except ValueError:
        return
    assert name.parts[0] == "storage.googleapis.com"
    assert not {"..", ".", "/", ""} & set(name.parts)
    assert not any(set('\\<>:"|?*\0') & set(part) or len(part) > 200 for part in name.parts)


def test_mirror_url_refuses_what_is_neither_url_nor_folder():
    with pytest.raises(ValueError, match="must be a folder, or a URL"):
        mirror_url("s3://bucket", "https://host/a.npz")
