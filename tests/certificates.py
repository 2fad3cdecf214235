"""Certificates for tests, made by the openssl command: signed by themselves, for 127.0.0.1."""

import subprocess
from pathlib import Path


def make(folder: Path, name: str, *, days: int = 2, key: str = "ec") -> tuple[Path, Path]:
    """A certificate and its key. With 0 `days` it has expired when it is made."""
    cert, key_file = folder / f"{name}.crt", folder / f"{name}.key"
    kind = {"ec": ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"], "rsa": ["rsa:2048"]}[key]
    run("req", "-x509", "-newkey", *kind, "-nodes", "-keyout", key_file, "-out", cert, "-days", days or 1,
        "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")  # fmt: skip
    if not days:  # `req` makes none that has expired; the other subcommand does not take extensions from a command line
        request = folder / f"{name}.csr"
        run("req", "-new", "-key", key_file, "-out", request, "-subj", f"/CN={name}")
        run("x509", "-req", "-in", request, "-signkey", key_file, "-out", cert, "-days", days)
    return cert, key_file


def run(*arguments: object) -> None:
    """The openssl command."""
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
