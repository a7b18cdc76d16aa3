"""Routes of the dashboard's buttons and of its form: they ask for confirmation, act, and redirect to the result."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from forewarn.control.context import Context
from forewarn.core.access import Principal
from forewarn.dashboard import actions, confirmation
from forewarn.dashboard.forms import read_form
from forewarn.dashboard.pages.schedule import make_schedule_preview, read_request
from forewarn.dashboard.render import render_template
from forewarn.dashboard.request_guard import Answer, PageAnswer, PageRequest
from forewarn.errors import ForewarnError

__all__ = ["ButtonRoutes"]


class ButtonRoutes:
    """Handlers of the buttons.

    `make_common_values` returns the values that every page shows, by request, title and caller.
    """

    def __init__(
        self, context: Context, make_common_values: Callable[[Request, str, Principal], dict[str, object]]
    ) -> None:
        self._context = context
        self._make_common_values = make_common_values

    def make_routes(self, require_same_origin: Callable[[PageAnswer], Answer]) -> list[Route]:
        """Return the routes, each wrapped in the check for sessions and foreign sites."""
        return [
            Route("/schedule", require_same_origin(self._handle_schedule_form), methods=["POST"]),
            Route("/maintenance/{id}/approve/{event}", require_same_origin(self._approve_event), methods=["POST"]),
            Route("/maintenance/{id}/{verb}", require_same_origin(self._act_on_maintenance), methods=["POST"]),
            Route("/hosts/{name}/recover", require_same_origin(self._recover_host), methods=["POST"]),
            Route("/rollouts/{id}/{verb}", require_same_origin(self._act_on_rollout), methods=["POST"]),
        ]

    async def _act_on_maintenance(self, visit: PageRequest) -> Response:
        maintenance_id, verb = visit.request.path_params["id"], visit.request.path_params["verb"]
        form = await read_form(visit.request)
        actions.check_maintenance_action(verb, form, visit.caller)
        path = visit.request.url.path
        question = await confirmation.confirm_maintenance_action(self._context, verb, maintenance_id, path, form)
        if question is not None:
            return self._render_confirmation(visit, question)
        await actions.act_on_maintenance(self._context, verb, maintenance_id, form, visit.caller)
        return _redirect_to(f"/maintenance/{quote(maintenance_id)}")

    async def _approve_event(self, visit: PageRequest) -> Response:
        maintenance_id, event_id = visit.request.path_params["id"], visit.request.path_params["event"]
        await actions.approve_event(self._context, event_id, visit.caller)
        return _redirect_to(f"/maintenance/{quote(maintenance_id)}")

    async def _act_on_rollout(self, visit: PageRequest) -> Response:
        rollout_id, verb = visit.request.path_params["id"], visit.request.path_params["verb"]
        form = await read_form(visit.request)
        actions.check_button_allowed(visit.caller, "rollout")
        question = await confirmation.confirm_rollout_action(
            self._context, verb, rollout_id, visit.request.url.path, form
        )
        if question is not None:
            return self._render_confirmation(visit, question)
        await actions.act_on_rollout(self._context, verb, rollout_id, form, visit.caller)
        return _redirect_to(f"/rollouts/{quote(rollout_id)}")

    async def _recover_host(self, visit: PageRequest) -> Response:
        name = visit.request.path_params["name"]
        await actions.recover_host(self._context, name, await read_form(visit.request), visit.caller)
        return _redirect_to(f"/hosts/{quote(name)}")

    def _render_confirmation(self, visit: PageRequest, question: confirmation.Confirmation) -> Response:
        """Return the page that asks for confirmation."""
        values = self._make_common_values(visit.request, question.title, visit.caller) | {"question": question}
        return HTMLResponse(render_template("confirm.html", values))

    async def _handle_schedule_form(self, visit: PageRequest) -> Response:
        actions.check_button_allowed(visit.caller, "schedule")
        form = await read_form(visit.request)
        try:
            wanted = read_request(form, self._context.settings.request_vms_max)
            if form.get("step") == "send":
                made = await actions.schedule_maintenance(self._context, wanted, form.get("key", ""), visit.caller)
                return _redirect_to(f"/maintenance/{quote(made[0])}" if len(made) == 1 else "/")
            rehearsed = await self._context.engine.maintenances.preview(wanted.to_request(), actor=visit.caller.actor)
        except ForewarnError as error:
            page, status = make_schedule_preview(form, None, error), error.status
        else:
            page, status = make_schedule_preview(form, rehearsed, None), HTTPStatus.OK
        values = {**self._make_common_values(visit.request, page.title, visit.caller), **page.values}
        return HTMLResponse(render_template(page.template, values), status)


def _redirect_to(path: str) -> Response:
    return RedirectResponse(path, HTTPStatus.SEE_OTHER)
