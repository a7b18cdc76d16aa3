"""The agent reads its configuration again on SIGHUP, and events that are under way go on."""

from __future__ import annotations

from pathlib import Path

from tests.support.agent_process import AgentProcess, agent_process
from tests.support.exact_endpoint import exact_endpoint
from tests.support.processes import wait_for

EVENT = "602D9444-D2CD-49C7-8624-8643E7171297"


def noting(name: str, *rest: str) -> str:
    """A rule whose hooks write its name and their step into the file ``ran``."""
    hooks = (f"{step} = [{{ shell = 'echo {name} {step} >> {{folder}}/ran' }}]" for step in ("prepare", "recover"))
    return "\n".join(["[[rule]]", f'name = "{name}"', *hooks, *rest])


def ran(folder: Path) -> list[str]:
    return (folder / "ran").read_text().splitlines()


def sample(agent: AgentProcess, name: str) -> float:
    (line,) = [line for line in agent.metrics().splitlines() if line.startswith(f"{name} ")]
    return float(line.rpartition(" ")[2])


def test_new_rules_hold_for_the_next_event(tmp_path: Path) -> None:
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, noting("old")) as agent:
        agent.write(noting("new"))
        agent.reload()
        endpoint.show(EVENT)
        agent.wait_for_state("started")
        endpoint.clear()
        wait_for(lambda: agent.event() is None)
        assert ran(tmp_path) == ["new prepare", "new recover"]
        assert sample(agent, "forewarn_agent_config_current") == 1


def test_a_wrong_configuration_changes_nothing_and_is_told_until_it_is_mended(tmp_path: Path) -> None:
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, noting("old")) as agent:
        agent.write('[[rule]]\napprove = "soon"\n')
        agent.reload()
        error = agent.status()["config_error"]
        assert error.startswith(f"{agent.config}: rule[0].approve: ")
        assert [each["event"] for each in agent.log() if each["level"] == "error"] == [
            f"configuration not reloaded; the previous one stays in effect: {error}"
        ]
        (row,) = [row for row in agent.forewarn("agent", "status", columns=400).stdout.splitlines() if error in row]
        assert row.startswith("configuration error ")
        assert sample(agent, "forewarn_agent_config_current") == 0
        assert sample(agent, 'forewarn_agent_config_reloads_total{outcome="failed"}') == 1
        endpoint.show(EVENT)
        agent.wait_for_state("started")
        assert ran(tmp_path) == ["old prepare"]
        agent.config.unlink()
        agent.reload()
        assert agent.status()["config_error"].startswith(f"configuration file {agent.config} does not exist")
        agent.write(noting("new"))
        agent.reload()
        assert agent.status()["config_error"] is None
        assert sample(agent, "forewarn_agent_config_current") == 1


def test_what_was_begun_goes_on_and_is_undone_by_its_own_rule(tmp_path: Path) -> None:
    """Also when that is no longer in the file. The hook that runs meanwhile is left alone."""
    waits = "prepare = [{ shell = 'echo begun >> {folder}/ran; while [ ! -e {folder}/go ]; do sleep 0.05; done' }]"
    rules = f"[[rule]]\n{waits}\nrecover = [{{ shell = 'echo undone >> {{folder}}/ran' }}]"
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, rules) as agent:
        endpoint.show(EVENT)
        wait_for((tmp_path / "ran").exists)
        agent.write("")
        agent.reload()
        assert agent.event()["steps"]["prepare"]["state"] == "running"
        (tmp_path / "go").touch()
        assert agent.wait_for_state("started")["steps"]["prepare"]["tries"] == 1
        endpoint.clear()
        wait_for(lambda: agent.event() is None)
        assert ran(tmp_path) == ["begun", "undone"]


def test_an_event_about_which_nothing_was_done_is_matched_anew(tmp_path: Path) -> None:
    held = '[[rule]]\nname = "held"\napprove = "by-hand"\n'
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, held) as agent:
        endpoint.show(EVENT)
        assert wait_for(agent.event)["rule"] == "held"
        agent.write(noting("new"))
        agent.reload()
        assert agent.wait_for_state("started")["rule"] == "new"
        assert ran(tmp_path) == ["new prepare"]


def test_a_retry_after_a_reload_runs_the_mended_hook(tmp_path: Path) -> None:
    wrong = noting("db").replace("echo db prepare", "ecko db prepare")
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, wrong) as agent:
        endpoint.show(EVENT)
        agent.wait_for_state("failed")
        agent.write(noting("db"))
        agent.reload()
        assert agent.event()["state"] == "failed"
        assert agent.forewarn("agent", "retry").returncode == 0
        agent.wait_for_state("started")
        assert ran(tmp_path) == ["db prepare"]


def test_what_has_to_wait_for_a_restart_is_named(tmp_path: Path) -> None:
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url) as agent:
        agent.write("", head='dry_run = true\nscale_set = "x"\nlog_level = "debug"\n')
        agent.reload()
        assert (agent.status()["waits_for_restart"], agent.status()["dry_run"]) == (["scale_set", "dry_run"], False)
        assert "scale_set, dry_run" in agent.forewarn("agent", "status").stdout
        assert [line["event"] for line in agent.log() if line["level"] == "warning"] == [
            "configuration reloaded, but changes to scale_set, dry_run need a restart"
        ]
        endpoint.show(EVENT)
        wait_for(lambda: [line for line in agent.log() if line["level"] == "debug"])  # log_level holds at once
