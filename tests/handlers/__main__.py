"""``python -m tests.handlers`` writes docs/reference/planted-faults.md from what the faults say of themselves."""

from __future__ import annotations

from tests.handlers.page import PAGE, planted_faults_page

PAGE.write_text(planted_faults_page(), encoding="utf-8")
