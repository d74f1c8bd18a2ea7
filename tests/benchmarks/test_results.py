"""Results and the code that made them: fingerprints, `--all`, and what is quoted."""

import argparse
import json
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks import everything
from benchmarks.index import COMMANDS, JOBS, Job
from benchmarks.shared import fingerprint
from benchmarks.shared.results import make_parser, running, write

CODE = '''
"""A module."""
LIMIT = 3.0

def halve(x: float) -> float:
    if x < 0:
        raise ValueError(f"halve: x must be positive; it is {x}")
    return x / 2  # once
'''
SAME = {
    "formatting": CODE.replace("x / 2  # once", "(x/\n        2)"),
    "docstrings": CODE.replace('"""A module."""', '"""Another."""\n"""And more."""'),
    "annotations": CODE.replace("x: float) -> float", "x)"),
    "assertions": CODE.replace(
        "    return x / 2", "    assert x >= 0\n    return x / 2"
    ),
    "errors": CODE.replace("must be positive; it is {x}", "is negative"),
}
OTHER = {
    "a constant": CODE.replace("3.0", "2.0"),
    "an operation": CODE.replace("x / 2", "x // 2"),
    "a condition": CODE.replace("x < 0", "x <= 0"),
    "a name": CODE.replace("LIMIT", "BOUND"),
    "no docstring, but a result": CODE.replace("x / 2", '"half"'),
}


@pytest.mark.parametrize("what", SAME)
def test_a_fingerprint_does_not_see_what_no_figure_depends_on(what):
    assert SAME[what] != CODE
    assert fingerprint.of_source(SAME[what]) == fingerprint.of_source(CODE)


@pytest.mark.parametrize("what", OTHER)
def test_a_fingerprint_sees_every_change_of_the_code(what):
    assert fingerprint.of_source(OTHER[what]) != fingerprint.of_source(CODE)


def test_a_benchmark_is_all_that_it_imports_but_what_presents(tmp_path):
    folder = tmp_path / "benchmarks" / "kind"
    folder.mkdir(parents=True)
    files = {
        "main": "from benchmarks.kind import helper\nfrom .nothing import at_all\n"
        "from benchmarks.kind.main_report import show",
        "helper": "import benchmarks.kind.deeper\nimport numpy",
        "deeper": "SIZE = 1",
        "main_report": "WIDTH = 1",
        "unrelated": "SIZE = 1",
    }

    def told(**changes):
        for name, text in (files | changes).items():
            (folder / f"{name}.py").write_text(text)
        fingerprint.of_benchmark.cache_clear()
        return fingerprint.of_benchmark("benchmarks.kind.main", tmp_path)

    usual = told()
    assert told(deeper="SIZE = 2") != usual
    assert told(main_report="WIDTH = 2") == usual
    assert told(unrelated="SIZE = 2") == usual


JOB = Job(command="sweep", result="small/small.json", arguments=("--seeds", "1"))


@pytest.fixture
def kept(tmp_path):
    """A folder with the result of `JOB` as its command would write it now."""
    module = f"benchmarks.{COMMANDS[JOB.command].module}"
    with running(JOB.command, module, [*JOB.arguments, "--out", "elsewhere"]):
        write(tmp_path / "small", "small", {"figure": 1.0}, "One.")
    return tmp_path


def test_a_result_says_how_it_was_made(kept):
    content = json.loads((kept / JOB.result).read_text("utf-8"))
    assert content["figure"] == 1.0
    assert set(content["made"]) == {
        *("commit", "step", "solver", "moves", "command", "sources", "seconds")
    }
    report = (kept / "small" / "small.md").read_text("utf-8")
    assert "python -m benchmarks sweep --seeds 1" in report
    assert content["made"]["step"] in report


def test_a_result_is_current_until_the_code_or_the_command_is_another(kept):
    file = kept / JOB.result
    content = json.loads(file.read_text("utf-8"))
    assert everything.stale(JOB, kept) is None
    changes = {
        "step": "of another step",
        "sources": "of another benchmark",
        "command": "by another command: 0",
    }
    for name, why in changes.items():
        file.write_text(json.dumps({"made": content["made"] | {name: "0"}}))
        assert everything.stale(JOB, kept) == why
    # A result that does not depend on the solver does not know it.
    file.write_text(json.dumps({"made": content["made"] | {"solver": "0"}}))
    assert everything.stale(JOB, kept) is None
    assert everything.stale(JOB._replace(part="solver"), kept) == "of another solver"
    # What is trained depends on where the step leads, and not on how.
    trained = JOB._replace(part="moves")
    file.write_text(json.dumps({"made": content["made"] | {"step": "0"}}))
    assert everything.stale(trained, kept) is None
    other = [number + 0.01 for number in content["made"]["moves"]]
    file.write_text(json.dumps({"made": content["made"] | {"moves": other}}))
    assert everything.stale(trained, kept) == "of other moves"
    file.write_text("{}")
    assert everything.stale(JOB, kept) == "of unknown origin"
    file.unlink()
    assert everything.stale(JOB, kept) == "missing"


@pytest.mark.slow
def test_a_result_may_be_declared_to_be_of_a_commit(kept):
    if subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True).returncode:
        pytest.skip("needs a clone")
    file = kept / JOB.result
    file.write_text('{"figure": 1.0}')
    everything.declare(JOB, "HEAD", kept)
    content = json.loads(file.read_text("utf-8"))
    assert content["figure"] == 1.0
    assert content["made"]["commit"] == "HEAD"
    assert len(content["made"]["step"]) == len(fingerprint.of_part("step"))


def test_every_job_is_a_command_with_a_result_of_its_own():
    assert len({job.result for job in JOBS}) == len(JOBS)
    assert {job.command for job in JOBS} <= set(COMMANDS)
    assert {job.part for job in JOBS} <= {*fingerprint.PARTS, "moves"}


def test_all_resumes_what_can_and_is_small_when_quick():
    job = Job(command="sweep", result="feasibility/sweep.json", resumes=True)
    options = argparse.Namespace(quick=False, resume=True, data=Path("data"))
    assert everything.line(job, options) == ["sweep", "--resume"]
    options.quick = True
    assert everything.line(job, options)[:2] == ["sweep", "--quick"]


def test_what_is_small_does_not_replace_what_is_kept():
    parser = make_parser("precision", "", Path("benchmarks/results/feasibility"))
    assert parser.parse_args([]).out == Path("benchmarks/results/feasibility")
    assert "results" not in str(parser.parse_args(["--quick"]).out)
    for order in (["--quick", "--out", "here"], ["--out", "here", "--quick"]):
        assert parser.parse_args(order).out == Path("here")


def quoted():
    """The reports that the README or the site link to or include, and where."""
    pages = [Path("README.md"), *sorted(Path("docs").rglob("*.md"))]
    found = {}
    for page in pages:
        text = page.read_text("utf-8")
        for name in re.findall(r"benchmarks/results/([\w/.-]+\.md)", text):
            found.setdefault(name, []).append(str(page))
    return found


@pytest.mark.parametrize("report", quoted())
def test_no_page_quotes_a_report_of_another_step(report):
    """What is quoted was made with the step, or the solver, as the code has it now.

    To mend it, make the report again (``python -m benchmarks --all --resume``), or
    take it from the pages that are named.
    """
    file = (everything.RESULTS / report).with_suffix(".json")
    jobs = {everything.RESULTS / job.result: job for job in JOBS}
    assert file in jobs, f"{report}, quoted by {quoted()[report]}, is of no job"
    content = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    made, part = content.get("made", {}), jobs[file].part
    assert fingerprint.is_same(part, made), (
        f"{report}, quoted by {quoted()[report]}, is of another {part}"
    )
