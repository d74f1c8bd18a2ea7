"""Formulas as MathML, which browsers typeset themselves: no script and no network."""

from docutils.nodes import SkipNode
from docutils.utils.math import latex2mathml


def setup(app):
    """Register the renderer ``mathml``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(self, node):
    self.body.append(latex2mathml.tex2mathml(node.astext()))
    raise SkipNode


def _block(self, node):
    formula = latex2mathml.tex2mathml(node.astext(), as_block=True)
    self.body.append(f'<div class="math">{formula}</div>')
    raise SkipNode
