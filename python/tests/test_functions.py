"""Functions, their results, and their agreement with the command."""

from __future__ import annotations

import html
import json
import subprocess
import sys
import unittest

import chakram
from support import CAPTURE, CASE, STUDY, TRACES, InFolder


class Functions(InFolder):
    def test_a_capture_is_converted_and_replayed_on_two_machines(self) -> None:
        job = chakram.convert(CAPTURE, "out/job")
        self.assertEqual(job.path, "out/job")
        self.assertEqual(job.schema, "chakram.conversion.1")
        both = chakram.replay(job, machine=["dgx-a100", "dgx-h100"], compute="roofline")
        self.assertIsInstance(both, chakram.Comparison)
        self.assertEqual([one.machine.name for one in both.machines], ["dgx-a100", "dgx-h100"])
        self.assertEqual(both.breakdown().column_names[:3], ["machine", "compute", "communication"])
        one = chakram.replay(job, machine=chakram.machine("dgx-h100"), compute="roofline")
        self.assertEqual(one.makespan_ps, both.machines[1].makespan_ps)

    def test_a_report_is_the_document_that_the_command_prints(self) -> None:
        report = chakram.replay(CASE, network="links", links=True)
        line = [sys.executable, "-m", "chakram", "replay", str(CASE), "--network", "links", "--links", "--format", "json"]
        printed = subprocess.run(line, capture_output=True, check=True)
        self.assertEqual(report.text, printed.stdout.decode())
        self.assertEqual(report.to_dict(), json.loads(printed.stdout))
        # The parts of an NPU's time sum to the makespan; mean_ps is the mean over eight that end together.
        self.assertEqual(sum(report.mean_ps.to_dict().values()), report.makespan_ps)
        self.assertEqual(report["mean_ps"]["compute"], report.mean_ps.compute)
        self.assertEqual(report.npus[7].rank, 7)
        self.assertIn("makespan_ps", dir(report))
        with self.assertRaisesRegex(AttributeError, "no member 'makespan'"):
            report.makespan  # noqa: B018
        self.assertEqual(len(report.table("npus")), 8)
        with self.assertRaisesRegex(KeyError, "no table 'machine'"):
            report.table("machine")

    def test_notebooks_show_the_page(self) -> None:
        report = chakram.replay(CASE)
        shown = report._repr_html_()
        self.assertTrue(shown.startswith('<iframe srcdoc="'))
        page = html.unescape(shown[len('<iframe srcdoc="') : shown.index('" width')])
        subprocess.run(
            [sys.executable, "-m", "chakram", "replay", str(CASE), "--html", "page.html", "--format", "json"],
            check=True, stdout=subprocess.DEVNULL,
        )
        self.assertEqual(page, (self.folder / "page.html").read_text(encoding="utf-8"))

    def test_models_and_patterns_are_generated(self) -> None:
        plan = chakram.generate("gpt2-small", dry_run=True, data=8, batch=8, machine="dgx-h100")
        self.assertIn("schema", plan)
        report = chakram.generate_pattern("collective", "all-reduce", ranks=8, size=10**9, machine="dgx-h100", map=range(8))
        self.assertEqual((report.ranks, report.nodes), (8, 8))
        written = chakram.generate_pattern("chain", ranks=2, nodes=4, output="chain")
        self.assertIn("2 ranks", written.text)
        self.assertEqual(chakram.replay(written, machine="dgx-h100").nodes, 8)

    def test_jobs_are_compared(self) -> None:
        same = chakram.diff(CASE / "job.0.et", CASE / "job.1.et")
        self.assertEqual(same.differs.to_dict(), {"structure": False, "time": False, "bytes": False})

    def test_studies_are_swept_in_shards_or_whole(self) -> None:
        (self.folder / "study.toml").write_text(STUDY)
        whole = chakram.sweep("study.toml", output="whole", threads=1)
        self.assertEqual(len(whole.rows), 3)
        self.assertEqual(whole.best().to_dict(), whole.rows[whole.front[0]].to_dict())
        for shard in range(2):
            chakram.sweep("study.toml", output=f"part{shard}", shard=f"{shard}/2")
        chakram.merge_sweep("study.toml", ["part0", "part1"], output="merged")
        rows = [(self.folder / name / "rows.jsonl").read_bytes() for name in ("whole", "merged")]
        self.assertEqual(rows[0], rows[1])
        again = chakram.sweep("study.toml", output="whole", resume=True)
        self.assertEqual(again.rows, whole.rows)

    def test_requests_are_served(self) -> None:
        served = chakram.serve(TRACES / "lightspeed" / "burst-10g.toml", machine="lightning", requests=50)
        self.assertEqual(served.reports[0].platform.name, "lightning")

    def test_runs_are_scored(self) -> None:
        (self.folder / "columns.toml").write_text(
            'measured = "time"\nunit = "ms"\nmachine = "dgx-a100"\n[columns]\nnpus = "npus"\nbatch = "batch"\nhidden = "hidden"\n'
            'layers = "layers"\nheads = "heads"\nsequence = "sequence"\n[fixed]\nvocabulary = "51200"\nmicro-batch = "1"\ndtype = "fp16"\n'
        )
        (self.folder / "runs.csv").write_text("npus,batch,hidden,layers,heads,sequence,time\n1,4,1024,4,16,512,30\n")
        score = chakram.score("runs.csv", columns="columns.toml")
        self.assertIn("schema", score)
        with self.assertRaisesRegex(chakram.UsageError, "columns"):
            chakram.score("runs.csv")

    def test_machines_are_shown(self) -> None:
        self.assertIn("dgx-h100", [one.name for one in chakram.machines().machines])
        machine = chakram.machine("dgx-h100x2")
        self.assertEqual(machine.machine.npus, 16)
        (self.folder / "mine.toml").write_text(machine.to_toml())
        self.assertEqual(chakram.machine("mine.toml").machine.npus, 16)

    def test_archives_are_kept(self) -> None:
        archive = chakram.archive("corpus.etz")
        archive.create()
        archive.add(CASE, name="dp8", set={"gpu": "h100", "torch": "2.5"})
        self.assertEqual([one.name for one in archive.list().workloads], ["dp8"])
        self.assertEqual(len(archive.list(where="gpu = a100").workloads), 0)
        self.assertEqual(archive.show("dp8").traces[0].ranks, 8)
        archive.verify()
        report = chakram.replay(archive.workload("dp8"), machine="dgx-h100")
        self.assertEqual(report.ranks, 8)
        archive.baseline(machine="dgx-h100", reason="first")
        self.assertEqual(len(archive.check().predictions), 1)
        self.assertEqual(chakram.replay(archive.extract("dp8", "out"), machine="dgx-h100").ranks, 8)

    def test_any_command_runs(self) -> None:
        job = chakram.run("inspect", CASE, "--format", "json")
        self.assertIn("schema", job)
        self.assertIn("Usage", chakram.run("replay", "--help").text)


class Command(unittest.TestCase):
    def test_the_command_has_its_exit_codes(self) -> None:
        for arguments, code in [(["--version"], 0), (["replay", "no-such-job"], 2), (["machine", "show", "dgx-h100"], 0)]:
            line = [sys.executable, "-m", "chakram", *arguments]
            done = subprocess.run(line, capture_output=True, check=False)
            self.assertEqual(done.returncode, code, done.stderr)


if __name__ == "__main__":
    unittest.main()
