"""How Sphinx builds the site: ``sphinx-build -W --keep-going docs docs/_build/html``.

Nothing is fetched: formulas become MathML, the notebooks show the outputs that they are
kept with, and references to other packages are plain text.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import cdopt_jax

project = "cdopt_jax"
author = "The cdopt_jax authors"
copyright = author
release = version = cdopt_jax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "extensions.mathml",
    "extensions.offline",
    "extensions.references",
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]
default_role = "py:obj"
nitpicky = True

nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # what an argument is, its entry under Parameters says
add_module_names = False
autosummary_generate = True
napoleon_numpy_docstring = False
napoleon_attr_annotations = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"cdopt_jax {release}"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "source_repository": "https://github.com/cdopt-jax/cdopt_jax",
    "source_branch": "main",
    "source_directory": "docs/",
}
html_math_renderer = "mathml"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
