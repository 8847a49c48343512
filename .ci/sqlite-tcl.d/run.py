"""Runs SQLite's test files, each in a process of its own, and compares what failed with what is left out.

Owns: the reading of `left-out`. Promises: every test that fails and is not listed is told, every listed one that does
not fail any more, too; exits with 1 on the former. May call: testfixture.

Usage: run.py --testfixture PATH --tree PATH --work DIRECTORY --logs DIRECTORY
              [--jobs N] [--seconds N] [--slow] [--listed] [FILE ...]

FILE is the name of a test file, or a pattern; without any, all files are run, but the slow ones and those that are left
out whole: --slow and --listed bring them in.
"""

import argparse
import concurrent.futures
import fnmatch
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

# Where SQLite has its tests, as its `permutations.test` lists them.
FOLDERS = ["test", "ext/rtree", "ext/fts5/test", "ext/expert", "ext/recover", "ext/intck", "ext/session", "ext/rbu"]

# These run other test files, or measure.
NO_TESTS = """
    all.test async.test extraquick.test fts3.test full.test mallocAll.test memleak.test permutations.test quick.test
    rbu.test rtree.test session.test soak.test speed*.test valgrind.test veryquick.test
""".split()

# What SQLite leaves out of its suite `veryquick`: every allocation fails once, every call of the system, or minutes of
# the same. They run if they are named, or with --slow.
SLOW = """
    *malloc* *ioerr* *fault* *bigfile* *_err* *fts5corrupt* *fts5big* *fts5aj* *rbucrash* async2.test async3.test
    autovacuum_crash.test backup.test bigsort.test btree8.test corrupt.test corruptC.test crash.test crash[2-7].test
    delete3.test e_fkey.test e_fts3.test fts3an.test fts3corrupt2.test fts3cov.test fts3defer.test fts3rnd.test
    fts3snippet.test fts3sort.test fts4check.test fts4growth*.test fts4langid.test fts4merge*.test fts5ac.test
    fts5dlidx.test fts5prefix.test fts5unicode.test fuzz.test fuzz3.test fuzzer2.test in2.test loadext.test misc7.test
    mmap4.test mutex2.test onefile.test recovercorrupt.test rtree3.test rtree4.test savepoint4.test savepoint6.test
    securedel2.test select9.test sessionB.test sessionbig.test sort3.test sort4.test sqllimits1.test thread00[1-5].test
    tkt2686.test trans2.test vacuum3.test view3.test walcrash*.test walprotocol.test walslow.test walthread.test
    writecrash.test
""".split()


class Listed:
    """What is left out: whole files, and tests of files by patterns, each with the kind of reason."""

    def __init__(self, path):
        self.kinds, self.files, self.tests = {}, {}, {}
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if words[0] == "kind":
                self.kinds[words[1].rstrip(":")] = " ".join(words[2:])
                continue
            kind, names = words[0], words[1:]
            if kind not in self.kinds or not names:
                sys.exit(f"{path}:{number}: no kind, or no file")
            if kind == "reserved" and not os.environ.get("BYGONE_RESERVED"):
                continue
            if len(names) > 1 and not names[1].endswith(".test"):
                self.tests.setdefault(names[0], []).extend((kind, pattern) for pattern in names[1:])
            else:
                self.files.update((name, kind) for name in names)


class Outcome:
    """What a file did."""

    def __init__(self, name):
        self.name, self.count, self.failed, self.seconds = name, 0, [], 0.0


def run_file(path, arguments):
    """Runs a file in an empty directory of its own. What went wrong as a whole is a failed test in parentheses."""
    outcome = Outcome(path.name)
    place = pathlib.Path(arguments.work) / path.name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    result = place / "result"
    prologue = pathlib.Path(__file__).parent / "prologue.tcl"
    command = [os.path.abspath(arguments.testfixture), *map(str, [prologue, path, result])]
    begun = time.monotonic()
    with open(pathlib.Path(arguments.logs) / f"{path.name}.log", "wb") as log:
        process = subprocess.Popen(
            command, cwd=place, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(arguments.seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # What the test has started is in its process group.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    outcome.seconds = time.monotonic() - begun
    lines = result.read_text(errors="replace").splitlines() if result.exists() else []
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "tests":
            outcome.count = int(rest)
        elif word == "failed":
            outcome.failed.append(rest.replace(" ", "_"))
        elif word == "early":
            outcome.failed.append("(broke-off)")
    if code is None:
        outcome.failed.append("(time-limit)")
    elif code != 0 or not lines:
        outcome.failed.append("(crashed)")
    shutil.rmtree(place, ignore_errors=True)
    return outcome


def judge(outcome, listed):
    """Failed tests that are not listed, how many are, and patterns of the list that nothing that failed matches."""
    patterns = [pattern for _, pattern in listed.tests.get(outcome.name, [])]
    unexpected = [name for name in outcome.failed if not any(fnmatch.fnmatchcase(name, p) for p in patterns)]
    idle = [pattern for pattern in patterns if not fnmatch.filter(outcome.failed, pattern)]
    return unexpected, len(outcome.failed) - len(unexpected), idle


def main():
    parser = argparse.ArgumentParser()
    for name in ["testfixture", "tree", "work", "logs"]:
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--listed", action="store_true")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    listed = Listed(pathlib.Path(__file__).parent / "left-out")
    os.makedirs(arguments.logs, exist_ok=True)

    found = [path for folder in FOLDERS for path in sorted(pathlib.Path(arguments.tree, folder).glob("*.test"))]
    found = [path for path in found if not any(fnmatch.fnmatchcase(path.name, p) for p in NO_TESTS)]
    if arguments.files:
        found = [path for path in found if any(fnmatch.fnmatchcase(path.name, p) for p in arguments.files)]
    elif not arguments.slow:
        found = [path for path in found if not any(fnmatch.fnmatchcase(path.name, p) for p in SLOW)]
    whole = [path for path in found if path.name in listed.files]
    if arguments.listed:
        whole = []
    chosen = [path for path in found if path not in whole]
    names = {path.name for path in found}
    stale = sorted((set(listed.files) | set(listed.tests)) - names) if arguments.slow else []

    outcomes, bad = [], 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        futures = [pool.submit(run_file, path, arguments) for path in chosen]
        for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            outcome = future.result()
            outcomes.append(outcome)
            unexpected, _, _ = judge(outcome, listed)
            bad += len(unexpected)
            if unexpected:
                more = [f"and {len(unexpected) - 12} more"] if len(unexpected) > 12 else []
                shown = " ".join(unexpected[:12] + more)
                print(f"[{done}/{len(chosen)}] {outcome.name}: {outcome.count} tests, UNEXPECTED: {shown}", flush=True)
            elif done % 100 == 0:
                print(f"[{done}/{len(chosen)}]", flush=True)

    passed = left = 0
    with open(pathlib.Path(arguments.logs) / "summary", "w") as summary:
        for outcome in sorted(outcomes, key=lambda outcome: outcome.name):
            unexpected, expected, idle = judge(outcome, listed)
            left += expected
            passed += max(0, outcome.count - len([name for name in outcome.failed if not name.startswith("(")]))
            for pattern in idle:
                print(f"{outcome.name}: {pattern} is listed, and did not fail")
            failed = " ".join(outcome.failed)
            summary.write(f"{outcome.name} {outcome.count} {outcome.seconds:.1f} {failed}\n")
    for name in stale:
        print(f"{name} is listed, and is no test file")
    print(
        f"{len(outcomes)} files, {passed} tests passed, {left} left out as listed and {len(whole)} files whole, "
        f"{bad} unexpected"
    )
    sys.exit(1 if bad or not outcomes else 0)


main()
