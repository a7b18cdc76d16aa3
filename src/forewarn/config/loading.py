"""Loading of the settings from flags, environment and file, and their errors in one line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from forewarn.config.settings import Settings, SettingSource
from forewarn.errors import ConfigError

__all__ = ["load_settings", "make_settings"]


class _ArgumentSettings(Settings):
    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the arguments as the only source."""
        return (init_settings,)


def make_settings(**arguments: object) -> Settings:
    """Return settings from these arguments only, ignoring the environment and files.

    Raises:
        ConfigError: A value is invalid; one line names the setting and what was expected.
    """
    values: dict[str, Any] = dict(arguments)
    try:
        return _ArgumentSettings(**values)
    except ValidationError as error:
        raise _make_config_error(error) from error


def load_settings(config: Path | None = None, **flags: object) -> Settings:
    """Return settings from flags, environment and file.

    Args:
        config: TOML file; None for none.
        flags: Values from the command line; None counts as not given.

    Raises:
        ConfigError: A value is invalid; one line names the setting and what was expected.
    """
    if config is not None and not config.is_file():
        raise ConfigError(f"cannot read {config}: {'not a file' if config.exists() else 'no such file'}")

    # pydantic-settings takes the path of the file from the class, so each call needs a class.
    class _WithFile(Settings):
        model_config = SettingsConfigDict(toml_file=config)

        @classmethod
        def settings_customise_sources(cls, *args: Any, **kwargs: Any) -> tuple[PydanticBaseSettingsSource, ...]:  # noqa: ANN401 - pydantic's
            """Return the sources of `Settings`, and keep them."""
            used.extend(super().settings_customise_sources(*args, **kwargs))
            return tuple(used)

    used: list[PydanticBaseSettingsSource] = []
    try:
        said: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
        settings = _WithFile(**said)
        sources = _find_sources(used)
    except ValidationError as error:
        raise _make_config_error(error) from error
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read {config}: {words}") from error
    settings.note_sources(sources)
    return settings


_SOURCES = (SettingSource.COMMAND_LINE, SettingSource.ENVIRONMENT, SettingSource.FILE)
"""Meaning of the sources of `Settings`, in order of precedence."""


def _find_sources(used: Iterable[PydanticBaseSettingsSource]) -> dict[str, SettingSource]:
    found: dict[str, SettingSource] = {}
    for source, read in zip(_SOURCES, used, strict=True):
        for name in read():
            found.setdefault(name, source)
    return found


def _make_config_error(error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    msg = f"setting {name}: {first['msg'].removeprefix('Value error, ')}"
    return ConfigError(msg, setting=name)
