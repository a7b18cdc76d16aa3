"""Settings page: every setting with the value in force, and where the value comes from."""

from __future__ import annotations

from dataclasses import replace

from forewarn.config.description import SettingDescription, describe_settings, format_setting_value
from forewarn.config.settings import SettingSource
from forewarn.core.access import Role
from forewarn.dashboard.page import PageModel, PageView
from forewarn.net.outbound import redact_url
from forewarn.store.contract import Reader

__all__ = ["make_settings_page"]

_URLS = frozenset({"webhook_url", "notify_proxy", "tracing_endpoint"})
"""Settings whose paths may hold a key."""

_COMMANDS = frozenset({"exec_command", "exec_observe_command", "exec_abort_command"})
"""Settings whose arguments may hold a secret."""


def make_settings_page(_reader: Reader, view: PageView) -> PageModel:
    """Make the page of all settings, or of those whose values are not the defaults."""
    is_changed = view.query_params.get("show") == "changed"
    found = describe_settings(view.context.settings)
    is_operator = view.caller.role is Role.OPERATOR
    rows = [
        each if is_operator else _redact_setting(each)
        for each in found
        if not is_changed or each.source is not SettingSource.DEFAULT
    ]
    values = {"rows": rows, "count": len(found), "is_changed": is_changed, "format_value": format_setting_value}
    return PageModel(template="settings.html", title="Settings", values=values, is_live=False)


def _redact_setting(setting: SettingDescription) -> SettingDescription:
    """Return the setting as callers see it who may only read."""
    if not setting.value:
        return setting
    if setting.name in _URLS:
        return replace(setting, value=redact_url(setting.value))
    if setting.name in _COMMANDS:
        program, _, arguments = setting.value.partition(" ")
        return replace(setting, value=f"{program} …" if arguments else program)
    return setting
