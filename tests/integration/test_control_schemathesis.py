"""The control API keeps what its OpenAPI document says, whatever is sent: schemathesis against a running service."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, note, settings
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from forewarn.core.access import Role
from tests.support.access import token_of
from tests.support.service import Running, running
from tests.support.spans import GUARD_S

pytestmark = [pytest.mark.slow, pytest.mark.begins_first(200)]

# `test_the_api_describes_itself` holds that this is what the service says of itself.
DOCUMENT = json.loads((Path(__file__).parent.parent.parent / "docs/reference/openapi.json").read_text())
ENDLESS = {"/v1/watch", "/v1/hosts/{name}/watch"}
FITTING, UNFIT = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
CASES = [
    pytest.param(method, path, mode, id=f"{method} {path} {mode.value}")
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    for mode in (FITTING, UNFIT)
    # What takes nothing cannot be sent anything unfit.
    if path not in ENDLESS and (mode is FITTING or {"parameters", "requestBody"} & operation.keys())
]
EXAMPLES = 12
EXAMPLES_OF_OTHERS = 3
OTHERS = [Role.TENANT, Role.READ_ONLY, Role.HOST, None]
FOREIGN = re.compile(r"Wide_\d|vm-\d|host-(?:Web|Wide|vm)|operator:")
"""What stands in no answer to who owns the scope web, unless it was asked for by name."""
EXCLUDED: list[schemathesis.CheckFunction] = [
    positive_data_acceptance,  # not all that fits makes sense: "name a type or a cause" is no matter of types
    negative_data_rejection,  # a parameter that nobody knows is ignored, and the token is always sent
]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service of its own: what is sent here deletes VMs and replaces the inventory."""
    with running(tmp_path_factory.mktemp("described")) as started:
        yield started


@cache
def document_of(url: str) -> Any:  # noqa: ANN401 - its type is not public
    """What the service at that URL says of itself; to read it takes longer than a test."""
    return schemathesis.openapi.from_url(f"{url}/openapi.json", timeout=GUARD_S)


@pytest.mark.parametrize(("method", "path", "mode"), CASES)
def test_every_operation_answers_as_the_document_says(
    described: Running, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    """No 5xx, and statuses, media types, headers and bodies as declared, for what fits the schema and what does not."""
    schema = document_of(described.service.control_url)
    headers = {"Authorization": f"Bearer {described.service.tokens.operator_token}"}

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
    @given(case=schema[path][method.upper()].as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(headers=headers, excluded_checks=EXCLUDED, timeout=GUARD_S)

    check()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with maintenance for several owners."""
    with running(tmp_path_factory.mktemp("shared"), refused_entries_max=20) as started:
        for vm in (started.web[0], started.wide[0], started.vm()):
            started.enable(vm)
        with started.operator() as operator:
            wanted = {"vms": ["Web_0", "Wide_0", "vm-0"], "force": True, "reason": "host-Web_0 smokes", "notice_s": 800}
            assert operator.post("/v1/maintenance", json=wanted | {"type": "Freeze"}).status_code == 201
        yield started


@pytest.fixture(scope="module")
def tokens(shared: Running) -> dict[Role | None, str | None]:
    return {role: None if role is None else token_of(shared, role) for role in OTHERS}


@pytest.mark.parametrize(("method", "path", "mode"), CASES)
def test_whoever_asks_is_answered_as_the_document_says_and_told_nothing_foreign(
    shared: Running,
    tokens: dict[Role | None, str | None],
    method: str,
    path: str,
    mode: schemathesis.GenerationMode,
) -> None:
    schema = document_of(shared.service.control_url)

    @settings(max_examples=EXAMPLES_OF_OTHERS, suppress_health_check=list(HealthCheck), database=None)
    @given(case=schema[path][method.upper()].as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case[Any]) -> None:
        for role, token in tokens.items():
            note(f"asked as {role or 'anonymous'}")
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            answer = case.call_and_validate(headers=headers, excluded_checks=EXCLUDED, timeout=GUARD_S)
            if role is Role.TENANT:
                asked = f"{answer.request.url} {answer.request.body!r}"
                assert {name for name in FOREIGN.findall(answer.text) if name not in asked} == set()

    check()
