"""Mutual TLS with a daemon: `cargo vm test languages` starts one. KPROBED_TLS is its address,
KPROBED_CERTIFICATES a directory with PEM files.
"""

import os
from pathlib import Path

import pytest

import kprobed

SERVER, FILES = os.environ["KPROBED_TLS"], Path(os.environ["KPROBED_CERTIFICATES"])


def connect(ca="ca.pem"):
    return kprobed.connect(
        SERVER, ca=FILES / ca, certificate=FILES / "client.pem", key=FILES / "client.key", server_name="kprobed.test", timeout=10
    )


def test_both_sides_show_certificates():
    with connect() as client:
        assert client.host().kernel_release


def test_an_authority_that_is_not_known_is_refused():
    with connect("stranger.pem") as client, pytest.raises(kprobed.KprobedError):
        client.host()
