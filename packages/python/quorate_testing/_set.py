"""Starts `quorate up`, breaks its members on purpose, and ends it."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading

#: How long a set may take to become ready, in seconds.
READY_LIMIT = 60
#: How long a set may take to end, in seconds.
STOP_LIMIT = 30
#: How many lines of the program's talk an error quotes.
QUOTED_LINES = 20


class QuorateError(Exception):
    """The set could not be started, or did not do what it was asked."""


def find_program():
    """The program `quorate`: named by QUORATE_BIN, carried by this package, or on the PATH."""
    named = os.environ.get("QUORATE_BIN")
    if named:
        if not os.path.isfile(named):
            raise QuorateError(f"QUORATE_BIN names {named}, which is no file; name the program quorate")
        return named
    carried = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "quorate")
    if os.path.isfile(carried):
        return carried
    found = shutil.which("quorate")
    if found:
        return found
    raise QuorateError(
        "the program quorate is not here: this package does not carry it for this platform; "
        "build it with `cargo install --path crates/cli` and put it on the PATH, or name it in QUORATE_BIN"
    )


class Member:
    """One process of the set."""

    def __init__(self, index, host, pid):
        #: Its `_id` in the configuration of the set.
        self.index = index
        #: Its address, as ``127.0.0.1:port``.
        self.host = host
        #: Its process.
        self.pid = pid

    def kill(self):
        """Ends the process at once, as a crash would."""
        os.kill(self.pid, signal.SIGKILL)

    def pause(self):
        """Stops the process without closing its sockets, as a frozen host would."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self):
        """Lets a paused process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def part(self):
        """Cuts the member off from the others. Clients still reach it."""
        os.kill(self.pid, signal.SIGUSR1)

    def heal(self):
        """Ends the cut."""
        os.kill(self.pid, signal.SIGUSR2)

    def __repr__(self):
        return f"Member({self.index}, {self.host!r}, pid={self.pid})"


class ReplicaSet:
    """A replica set that lives until :meth:`stop`, the end of its ``with`` block, or the end of this process."""

    def __init__(self, members=3, arbiters=0, name=None, data=None, arguments=()):
        self.program = find_program()
        command = [self.program, "up", "--json", "--port", "0"]
        command += ["--members", str(members), "--arbiters", str(arbiters)]
        if name is not None:
            command += ["--name", name]
        command += ["--data", str(data)] if data is not None else ["--memory"]
        # `cat` ends when this process does, however it ends, because its input ends; and the set ends with it.
        command += [*arguments, "--", "cat"]
        self._talk = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._talk
        )
        self.members = []
        self.uri = None
        guard = threading.Timer(READY_LIMIT, self._process.kill)
        guard.start()
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        finally:
            guard.cancel()

    def _wait_until_ready(self):
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("event") == "member":
                self.members.append(Member(event["id"], event["host"], event["pid"]))
            elif event.get("event") == "ready":
                self.uri = event["uri"]
                # The pipe is read to its end so that the program never waits for this process.
                drain = threading.Thread(target=self._drain, daemon=True)
                drain.start()
                return
        raise QuorateError(f"the set ended or was not ready within {READY_LIMIT} s:\n{self._quoted_talk()}")

    def _drain(self):
        for _ in self._process.stdout:
            pass

    def _quoted_talk(self):
        self._talk.seek(0)
        lines = self._talk.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-QUOTED_LINES:])

    def run(self, command, database="admin"):
        """Runs one command through server selection and gives its reply."""
        finished = subprocess.run(
            [self.program, "run", self.uri, json.dumps(command), "--database", database],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if finished.returncode != 0:
            raise QuorateError(finished.stderr.decode(errors="replace").strip())
        return json.loads(finished.stdout)

    def primary(self):
        """The member that leads now."""
        leader = self.run({"hello": 1})["primary"]
        return next(member for member in self.members if member.host == leader)

    def step_down(self, seconds=10):
        """Has the primary make way for another."""
        self.run({"replSetStepDown": seconds, "secondaryCatchUpPeriodSecs": min(seconds - 1, 10)})

    def stop(self):
        """Ends every member. Calling it again does nothing."""
        if self._process.poll() is None:
            for member in self.members:
                try:
                    member.resume()
                except ProcessLookupError:
                    pass
            self._process.stdin.close()
            try:
                self._process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                self._process.terminate()
                try:
                    self._process.wait(STOP_LIMIT)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
        self._talk.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
