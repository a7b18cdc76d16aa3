"""Routes of the buttons on the pages of subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from forewarn.control.context import Context
from forewarn.core.access import Principal
from forewarn.dashboard import actions
from forewarn.dashboard.confirmation import confirm_subscription_action
from forewarn.dashboard.forms import read_form
from forewarn.dashboard.page import PageModel
from forewarn.dashboard.render import render_template
from forewarn.dashboard.request_guard import Answer, PageAnswer, PageRequest

__all__ = ["SubscriptionRoutes"]


class SubscriptionRoutes:
    """Handlers of the buttons of a subscription.

    `make_common_values` returns the values that every page shows, by request, title and caller.
    """

    def __init__(
        self, context: Context, make_common_values: Callable[[Request, str, Principal], dict[str, object]]
    ) -> None:
        self._context = context
        self._make_common_values = make_common_values

    def make_routes(self, require_same_origin: Callable[[PageAnswer], Answer]) -> list[Route]:
        """Return the routes, each wrapped in the check for sessions and foreign sites."""
        at = "/administration/subscriptions/{name}"
        return [
            Route(f"{at}/test", require_same_origin(self._send_test), methods=["POST"]),
            Route(f"{at}/{{verb}}", require_same_origin(self._act), methods=["POST"]),
        ]

    async def _send_test(self, visit: PageRequest) -> Response:
        name = visit.request.path_params["name"]
        outcome = await actions.test_subscription(self._context, name, visit.caller)
        page = PageModel(
            template="subscription_test.html", title=f"Test of {name}", values={"name": name, "outcome": outcome}
        )
        return self._render_page(visit, page)

    async def _act(self, visit: PageRequest) -> Response:
        name, verb = visit.request.path_params["name"], visit.request.path_params["verb"]
        actions.check_button_allowed(visit.caller, "subscription")
        form = await read_form(visit.request)
        question = await confirm_subscription_action(self._context, verb, name, visit.request.url.path, form)
        if question is not None:
            return self._render_page(
                visit, PageModel(template="confirm.html", title=question.title, values={"question": question})
            )
        await actions.act_on_subscription(self._context, verb, name, form, visit.caller)
        at = "/administration/subscriptions"
        return RedirectResponse(at if verb == "delete" else f"{at}/{quote(name, safe='')}", HTTPStatus.SEE_OTHER)

    def _render_page(self, visit: PageRequest, page: PageModel) -> Response:
        values = {**self._make_common_values(visit.request, page.title, visit.caller), **page.values}
        return HTMLResponse(render_template(page.template, values))
