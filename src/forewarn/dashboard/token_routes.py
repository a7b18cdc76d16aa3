"""Routes of the buttons on the pages of tokens."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from forewarn.control.context import Context
from forewarn.core.access import Principal
from forewarn.dashboard import actions
from forewarn.dashboard.confirmation import confirm_token_revocation
from forewarn.dashboard.forms import read_form
from forewarn.dashboard.page import PageModel
from forewarn.dashboard.pages.token import make_new_token_page, make_token_form, read_token_form
from forewarn.dashboard.render import render_template
from forewarn.dashboard.request_guard import Answer, PageAnswer, PageRequest
from forewarn.errors import ForewarnError

__all__ = ["TokenRoutes"]


class TokenRoutes:
    """Handlers of the form for a new token and of the buttons that revoke one.

    `make_common_values` returns the values that every page shows, by request, title and caller.
    """

    def __init__(
        self, context: Context, make_common_values: Callable[[Request, str, Principal], dict[str, object]]
    ) -> None:
        self._context = context
        self._make_common_values = make_common_values

    def make_routes(self, require_same_origin: Callable[[PageAnswer], Answer]) -> list[Route]:
        """Return the routes, each wrapped in the check for sessions and foreign sites."""
        at = "/administration/tokens"
        return [
            Route(f"{at}/create", require_same_origin(self._create_token), methods=["POST"]),
            Route(f"{at}/{{id}}/revoke", require_same_origin(self._revoke_token), methods=["POST"]),
        ]

    async def _create_token(self, visit: PageRequest) -> Response:
        actions.check_button_allowed(visit.caller, "create-token")
        form = await read_form(visit.request)
        try:
            wanted = read_token_form(form)
            token, secret = await actions.create_token(self._context, wanted, form.get("key", ""), visit.caller)
        except ForewarnError as error:
            page = make_token_form(form, error.message, self._context.settings.token_lifetime)
            return self._render_page(visit, page, error.status)
        # Not a redirect: the secret is stored nowhere, so only this response can show it.
        return self._render_page(visit, make_new_token_page(token, secret), HTTPStatus.CREATED)

    async def _revoke_token(self, visit: PageRequest) -> Response:
        token_id, path = visit.request.path_params["id"], visit.request.url.path
        actions.check_button_allowed(visit.caller, "revoke-token")
        form = await read_form(visit.request)
        question = await confirm_token_revocation(self._context, token_id, visit.caller, path, form)
        if question is not None:
            page = PageModel(template="confirm.html", title=question.title, values={"question": question})
            return self._render_page(visit, page)
        await actions.revoke_token(self._context, token_id, visit.caller)
        return RedirectResponse("/administration/tokens", HTTPStatus.SEE_OTHER)

    def _render_page(self, visit: PageRequest, page: PageModel, status: int = HTTPStatus.OK) -> Response:
        values = {**self._make_common_values(visit.request, page.title, visit.caller), **page.values}
        return HTMLResponse(render_template(page.template, values), status)
