"""A small real SLURM for tests: two nodes on this machine, gone when the test is.

    with Cluster(folder) as cluster:
        cluster.run("srun", "-N", "2", "hostname")

All of it (munged, slurmctld, a slurmd for each node, and so the jobs) lives below one process in
a PID namespace of its own: when that process ends, by whatever, the kernel ends all the others.
Each node has its own host name and /etc/hosts, in which the nodes are names of 127.0.0.1. Ports
are free ones, files are in `folder`; a SLURM that is installed on the machine is left alone.

    why_not()      why there can be none here; "" if there can
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

NODES = ("node1", "node2")
START = 120.0  # seconds
_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin"
_NEEDED = ("munged", "munge", "slurmctld", "slurmd", "sinfo", "srun", "sbatch", "unshare")
# Namespaces of root, or of an ordinary user who may have a user namespace.
_OWN = ["unshare", "--mount", "--uts", "--pid", "--mount-proc", "--fork", "--kill-child"]
if os.getuid() != 0:
    _OWN[1:1] = ["--user", "--map-current-user", "--keep-caps"]

_CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.s,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
ReturnToService=2
SlurmdTimeout=10
KillWait=5
TCPTimeout=20
MessageTimeout=60
MinJobAge=3600
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=10
PartitionName=spare Nodes=ALL MaxTime=INFINITE DefaultTime=10
"""

# Below `unshare`, as the first process of the PID namespace.
_INIT = """\
set -u
cd "$1"
umask 077; head -c 1024 /dev/urandom > munge.key; umask 022
munged --foreground --force --num-threads=2 --key-file="$1/munge.key" --socket="$1/munge.s" \
  --pid-file="$1/munge.pid" --log-file="$1/munged.log" --seed-file="$1/munge.seed" > munged.out 2>&1 &
for t in $(seq 300); do munge -S "$1/munge.s" -n > /dev/null 2>&1 && break; sleep 0.1; done
slurmctld -D -f "$1/slurm.conf" > slurmctld.out 2>&1 &
for node in node1 node2; do
  unshare --mount --uts sh -c 'hostname $2; mount --bind "$1/hosts" /etc/hosts
    exec slurmd -D -f "$1/slurm.conf" -N $2' sh "$1" $node > $node.out 2>&1 &
done
while true; do wait; sleep 1; done  # also for the orphans of jobs
"""


@functools.cache
def why_not() -> str:
    missing = [each for each in _NEEDED if not shutil.which(each, path=_PATH)]
    if missing:
        return f"no {', '.join(missing)}: apt-get install slurm-wlm munge"
    probe = ["sh", "-c", 'hostname x && mount --bind /dev/null "$0"', "/etc/hosts"]
    done = subprocess.run([*_OWN, *probe], capture_output=True, text=True, timeout=60, check=False)
    return f"no namespaces of one's own here: {done.stderr.strip()}" if done.returncode else ""


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "SRUN", "SBATCH", "SQUEUE"))
        }
        self.environment.update(PATH=_PATH, SLURM_CONF=str(folder / "slurm.conf"))
        self._init: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Cluster:
        self._write_files()
        self._init = subprocess.Popen(
            [*_OWN, "bash", "-c", _INIT, "init", str(self.folder)],
            env={**self.environment, "LC_ALL": "C"}, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            self._wait_until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._init is not None
        self._init.kill()  # unshare; --kill-child lets the namespace's first process follow
        self._init.wait(30)
        until = time.monotonic() + 30
        while (left := self._processes("")) and time.monotonic() < until:
            time.sleep(0.1)
        assert not left, f"still there: {left}"

    def run(self, *command: str, timeout: float = 60, check: bool = True) -> str:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def show(self, job: str) -> dict[str, str]:
        """`scontrol show job` as a dict."""
        words = self.run("scontrol", "show", "job", "-o", job).split()
        return dict(each.split("=", 1) for each in words if "=" in each)

    def end_slurmd(self, node: str) -> None:
        """As if the node had lost its power, its jobs too."""
        (slurmd,) = self._processes(f"-N\0{node}\0")
        for process in [*_same_namespace(slurmd), slurmd]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def start_slurmd(self, node: str) -> None:
        """A node that was ended comes back."""
        assert self._init is not None
        first = (
            Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()[0]
        )
        enter = ["nsenter", "-t", first, "-m", "-u", "-p"]
        start = (
            f'cd "{self.folder}"; unshare --mount --uts sh -c \'hostname {node}; '
            f'mount --bind "{self.folder}/hosts" /etc/hosts; '
            f'exec slurmd -D -f "{self.folder}/slurm.conf" -N {node}\' > {node}.out 2>&1 &'
        )
        subprocess.run([*enter, "sh", "-c", start], env=self.environment, check=True, timeout=30)

    def logs(self) -> str:
        """The ends of the daemons' logs, for the message of a test that fails."""
        files = sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")])
        return "\n".join(
            f"--- {file.name}\n" + "\n".join(file.read_text(errors="replace").splitlines()[-8:])
            for file in files
        )

    def idle(self) -> int:
        out = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T", check=False, timeout=30)
        return out.split().count("idle")

    def _wait_until_idle(self) -> None:
        until = time.monotonic() + START
        while time.monotonic() < until:
            assert self._init is not None
            assert self._init.poll() is None, f"the cluster has ended\n{self.logs()}"
            if self.idle() == len(NODES):
                return
            time.sleep(0.3)
        raise AssertionError(f"no idle nodes within {START:g} s\n{self.logs()}")

    def _write_files(self) -> None:
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (self.folder / name).mkdir()
        host = socket.gethostname().partition(".")[0]
        control, *ports = _free_ports(1 + len(NODES))
        text = _CONF.format(host=host, control=control, folder=self.folder, user=getpass.getuser())
        nodes = [
            f"NodeName={node} NodeHostname={node} NodeAddr=127.0.0.1 Port={port} CPUs=8 "
            f"RealMemory=64000 State=UNKNOWN\n"
            for node, port in zip(NODES, ports, strict=True)
        ]
        head, partitions = text.split("PartitionName", 1)
        (self.folder / "slurm.conf").write_text(f"{head}{''.join(nodes)}PartitionName{partitions}")
        names = "".join(f"127.0.0.1 {node}\n" for node in NODES)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost {host}\n{names}")

    def _processes(self, words: str) -> list[int]:
        """Those that name this cluster's configuration file in their command line or
        environment, with these words in the command line."""
        found = []
        mine = str(self.folder / "slurm.conf").encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    line = (entry / "cmdline").read_bytes()
                    known = mine in line
                except OSError:  # it has ended
                    continue
                if known and words.encode() in line:
                    found.append(int(entry.name))
        return found


def _same_namespace(process: int) -> list[int]:
    """The other processes of a node: those with its view of the file system."""
    theirs = os.readlink(f"/proc/{process}/ns/mnt")
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if entry.name.isdigit() and os.readlink(entry / "ns" / "mnt") == theirs:
                found.append(int(entry.name))
    return [each for each in found if each != process]


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
