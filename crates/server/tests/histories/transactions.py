"""Transactions through pymongo's own `with_transaction` while the primary is killed by the test that
started this. Every transaction is written down, with what its last attempt read.

Arguments: the connection string, the workload (append or bank), the file for the history.

Some threads work all the time. One more does what standard input asks for, so that the test can kill the
primary at a chosen place of its transaction:

  statement        tells `statement` after the first statement and waits for a line
  commit W         tells `commit N` before the commit with write concern W and waits for a line; N is the
                   mark that the transaction leaves in the collection `marks`
  racing           tells `racing` when the commit is about to be sent, and waits for nothing

It tells `ended OUTCOME ATTEMPTS N` when the transaction has ended; the attempt at whose place it waited is the
first. When standard input ends, so do all threads; the script reads everything once more and tells `content`.
"""

import itertools
import json
import random
import sys
import threading
import time

from pymongo import MongoClient, monitoring
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

URI, WORKLOAD, HISTORY = sys.argv[1:4]
WORKERS = 4
KEYS = 4
# How many values the clients draw before they move on to other lists.
VALUES_PER_ERA = 200
ACCOUNTS = 6
BALANCE = 100

stop = threading.Event()
lock = threading.Lock()
values = itertools.count(1)
processes = itertools.count(0)
history = open(HISTORY, "w", encoding="utf-8")
here = threading.local()


def tell(*words):
    print(*words, flush=True)


class Commits(monitoring.CommandListener):
    """Calls what a thread has asked for when its first commit is about to be sent."""

    def started(self, event):
        wanted = getattr(here, "at_commit", None)
        if event.command_name == "commitTransaction" and wanted:
            here.at_commit = None
            wanted()

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


client = MongoClient(URI, event_listeners=[Commits()], serverSelectionTimeoutMS=60_000)
database = client.get_database("histories", write_concern=WriteConcern("majority"))
lists, accounts, marks = database.lists, database.accounts, database.marks


class Client:
    """One process of the history: it does one thing at a time."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.process = next(processes)

    def write_down(self, kind, f, value):
        event = {"type": kind, "process": self.process, "time": time.monotonic_ns(), "f": f, "value": value}
        with lock:
            history.write(json.dumps(event) + "\n")

    def transaction(self, f, asked, run, w="majority", at_statement=None, before_commit=None):
        """Runs one transaction. `run` is given the session and a function to call after its first
        statement, and gives what the history should say if it commits. A transaction that failed in a
        statement did nothing; one that failed in its commit is unknown."""
        mark = next(values)
        # Attempts that met a conflict before the place where the test acts are not counted.
        state = {"attempts": 0, "committing": False, "learnt": None, "acted": False}

        def act(action, *words):
            if action and not state["acted"]:
                state["acted"] = True
                state["attempts"] = 1
                action(*words)

        def attempt(session):
            state["attempts"] += 1
            state["committing"] = False
            state["learnt"] = run(session, lambda: act(at_statement))
            marks.insert_one({"n": mark}, session=session)
            act(before_commit, mark)
            state["committing"] = True

        self.write_down("invoke", f, asked)
        try:
            with client.start_session() as session:
                session.with_transaction(
                    attempt, read_concern=ReadConcern("snapshot"), write_concern=WriteConcern(w)
                )
            outcome, value = "ok", state["learnt"]
        except Exception as error:
            print(f"{f} after {state['attempts']} attempts: {error!r}", file=sys.stderr, flush=True)
            outcome, value = ("info" if state["committing"] else "fail"), asked
        self.write_down(outcome, f, value)
        if outcome == "info":
            self.process = next(processes)
        return outcome, state["attempts"], mark

    def append(self, **how):
        steps = []
        for _ in range(self.chance.randint(1, 4)):
            value = next(values)
            key = value // VALUES_PER_ERA * KEYS + self.chance.randrange(KEYS)
            steps.append(["append", key, value] if self.chance.random() < 0.5 else ["r", key, None])

        def run(session, after_first):
            learnt = []
            for place, (name, key, value) in enumerate(steps):
                if name == "append":
                    lists.update_one({"_id": key}, {"$push": {"list": value}}, upsert=True, session=session)
                    learnt.append([name, key, value])
                else:
                    found = lists.find_one({"_id": key}, session=session)
                    learnt.append([name, key, found["list"] if found else []])
                if place == 0:
                    after_first()
            return learnt

        return self.transaction("txn", steps, run, **how)

    def transfer(self, **how):
        giver, taker = self.chance.sample(range(ACCOUNTS), 2)
        amount = self.chance.randint(1, 5)

        def run(session, after_first):
            moved = {"from": giver, "to": taker, "amount": amount}
            rich = accounts.find_one({"_id": giver}, session=session)["balance"] >= amount
            after_first()
            if rich:
                accounts.update_one({"_id": giver}, {"$inc": {"balance": -amount}}, session=session)
                accounts.update_one({"_id": taker}, {"$inc": {"balance": amount}}, session=session)
                database.transfers.insert_one(dict(moved), session=session)
            return moved

        asked = {"from": giver, "to": taker, "amount": amount}
        return self.transaction("transfer", asked, run, **how)

    def balances(self):
        def run(session, _):
            return {str(found["_id"]): found["balance"] for found in accounts.find(session=session)}

        return self.transaction("balances", None, run)

    def work(self, **how):
        if WORKLOAD == "append":
            return self.append(**how)
        if not how and self.chance.random() < 0.3:
            return self.balances()
        return self.transfer(**how)


def work(seed):
    worker = Client(seed)
    while not stop.is_set():
        worker.work()


def obey(worker):
    for line in sys.stdin:
        word, *rest = line.split()

        def pause(*words):
            tell(*words)
            sys.stdin.readline()

        if word == "statement":
            ended = worker.work(at_statement=lambda: pause("statement"))
        elif word == "commit":
            w = int(rest[0]) if rest[0].isdigit() else rest[0]
            ended = worker.work(w=w, before_commit=lambda mark: pause("commit", mark))
        elif word == "racing":
            here.at_commit = lambda: tell("racing")
            ended = worker.work()
            here.at_commit = None
        else:
            raise ValueError(line)
        tell("ended", *ended)


def finish():
    """Reads everything once more, outside of transactions: nothing works any more."""
    reader = Client(0)
    majority = database.with_options(read_concern=ReadConcern("majority"))
    for found in majority.lists.find(sort=[("_id", 1)]):
        reader.write_down("invoke", "txn", [["r", found["_id"], None]])
        reader.write_down("ok", "txn", [["r", found["_id"], found["list"]]])
    if WORKLOAD == "bank":
        reader.write_down("invoke", "balances", None)
        balances = {str(found["_id"]): found["balance"] for found in majority.accounts.find()}
        reader.write_down("ok", "balances", balances)
        expected = {str(account): BALANCE for account in range(ACCOUNTS)}
        for moved in majority.transfers.find():
            expected[str(moved["from"])] -= moved["amount"]
            expected[str(moved["to"])] += moved["amount"]
        assert balances == expected, f"{balances} instead of {expected}"
    twice = majority.marks.aggregate([{"$group": {"_id": "$n", "c": {"$sum": 1}}}, {"$match": {"c": {"$ne": 1}}}])
    twice = list(twice)
    assert not twice, f"these transactions took effect more than once: {twice}"


accounts.insert_many([{"_id": account, "balance": BALANCE} for account in range(ACCOUNTS)])
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(WORKERS)]
for thread in threads:
    thread.start()
tell("ready")
try:
    obey(Client(WORKERS))
finally:
    stop.set()
    for thread in threads:
        thread.join()
finish()
history.close()
tell("content")
