"""Runs programs of an image: in a container where this machine allows one, else in a chroot as strict as that can be.

Of both, the root file system is read-only but for the state folder, the user is the image's, and there is no shell.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.machine import seconds

ROOT: Final = Path(__file__).parents[2]
IMAGE: Final = ROOT / "scripts/image"
SHELLS: Final = ("sh", "bash", "dash")

_IN_CHROOT: Final = """
set -e
root=$1 state=$2 config=$3 user=$4
shift 4
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount --bind "$state" "$root/var/lib/warmroute"
mount --bind "$config" "$root/etc/warmroute"
for shell in sh bash dash; do mount --bind /dev/null "$root/bin/$shell"; done
mount -o remount,ro,bind "$root"
exec chroot --userspec="$user" "$root" "$@"
"""


def store(*words: str) -> str:
    """What buildah prints, asked about the images that scripts/image has built."""
    done = subprocess.run([IMAGE, "store", *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Image:
    """One image, unpacked. `way`: how its programs run here."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        found = json.loads(store("inspect", "--type", "image", name))
        self.config: dict[str, Any] = json.loads(found["Config"])["config"]
        self.layer_bytes: list[int] = [each["size"] for each in json.loads(found["Manifest"])["layers"]]
        self._container = store("from", name)
        self.root = Path(store("mount", self._container))
        self.state, self.etc = folder / "state", folder / "etc"
        for path in (self.state, self.etc):
            path.mkdir()
        os.chown(self.state, *map(int, self.config["User"].split(":")))
        self._bundle = folder / "bundle"
        self.way = "a container of crun" if self._runs_in_container() else "an unpacked root, in a chroot"

    def command(self, *words: str) -> list[str]:
        """The command line that runs `words` in it."""
        variables = ["/usr/bin/env", "-i", *self.config["Env"]]
        if self.way.startswith("a container"):
            return self._crun([*variables, *words])
        inside = [str(self.root), str(self.state), str(self.etc), self.config["User"]]
        return ["unshare", "--mount", "sh", "-c", _IN_CHROOT, "sh", *inside, *variables, *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `words` in it to their end."""
        return subprocess.run(self.command(*words), capture_output=True, text=True, check=False, timeout=seconds(120))

    def close(self) -> None:
        """Remove what was unpacked."""
        store("rm", self._container)

    def _runs_in_container(self) -> bool:
        if shutil.which("crun") is None:
            return False
        done = subprocess.run(self._crun(["/usr/bin/env"]), capture_output=True, check=False, timeout=seconds(120))
        return done.returncode == 0

    def _crun(self, words: list[str]) -> list[str]:
        self._bundle.mkdir(exist_ok=True)
        spec = self._bundle / "config.json"
        spec.unlink(missing_ok=True)
        subprocess.run(["crun", "spec"], cwd=self._bundle, check=True)
        config = json.loads(spec.read_text())
        uid, gid = map(int, self.config["User"].split(":"))
        config["root"] = {"path": str(self.root), "readonly": True}
        config["process"] |= {"terminal": False, "args": words, "user": {"uid": uid, "gid": gid}}
        for source, target in ((self.state, "/var/lib/warmroute"), (self.etc, "/etc/warmroute")):
            config["mounts"].append({"destination": target, "source": str(source), "options": ["rbind", "rw"]})
        for shell in SHELLS:
            hidden = {"destination": f"/bin/{shell}", "source": "/dev/null", "options": ["bind"]}
            config["mounts"].append(hidden)
        config["linux"]["namespaces"] = [
            each for each in config["linux"]["namespaces"] if each["type"] not in {"network", "cgroup"}
        ]
        spec.write_text(json.dumps(config))
        return ["crun", "run", "--bundle", str(self._bundle), f"warmroute-{os.getpid()}-{id(words)}"]
