"""Sphinx configuration of the documentation site, which `make docs` builds.

The source folder is the root of the repository: README.md is the front page, and the relative links between pages work
both on the site and on a code host. docs/adr/0021-documentation-site.md gives the reasons.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from forewarn import __version__  # noqa: E402 - the path has to be set before
from tools import site_extension  # noqa: E402 - as above

project = "Forewarn"
author = "The authors of Forewarn"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
source_suffix = {".md": "markdown"}
include_patterns = ["*.md", "docs/**.md"]
exclude_patterns = [".*", "build", "dist", "src", "tests", "bench", "examples", "packaging", "tools", "**/__pycache__"]

# Derive anchors from headings as code hosts do.
myst_heading_anchors = 4
myst_all_links_external = False
highlight_language = "none"
smartquotes = False

# Docstrings use single backticks for code.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "inherited-members": False}
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "Forewarn"
html_static_path = ["site/forewarn.css"]
html_extra_path = ["site/index.html"]
html_css_files = ["forewarn.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
# Code colours with enough contrast in the light and the dark theme (WCAG AA).
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_theme_options = {"top_of_page_buttons": [], "footer_icons": []}

setup = site_extension.setup
