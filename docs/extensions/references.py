"""Links from the package's names to their pages, however they are written.

A docstring says `where` and `stiefel.dissolve`, also in modules that do not define
them, and a guide says ``constrain(optimizer)``. Names of other packages stay plain
text, since their documentation is elsewhere.
"""

import re

from docutils import nodes
from sphinx import addnodes
from sphinx.util.nodes import make_refnode

import cdopt_jax

OTHERS = (
    "ArrayTree",  # Chex's
    "collections",
    "jax",
    "jnp",
    "nnx",
    "numpy",
    "optax",
    "scipy",
    "typing",
)
NAME = re.compile(r"^(?:cdx\.)?([A-Za-z_][\w.]*)(?:\(.*\))?$")


def setup(app):
    """Connect both: literals of the guides, and names that Sphinx did not find."""
    app.connect("doctree-read", _link_literals)
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _link_literals(app, doctree):
    if not app.env.docname.startswith(("guides/", "theory", "index")):
        return
    for literal in list(doctree.findall(nodes.literal)):
        match = NAME.match(literal.astext())
        linked = nodes.reference | addnodes.pending_xref | nodes.title
        inside = isinstance(literal.parent, linked)
        if match is None or inside or not _is_public(match[1]):
            continue
        link = addnodes.pending_xref(
            "",
            refdomain="py",
            reftype="obj",
            reftarget=f"cdopt_jax.{match[1]}",
            refdoc=app.env.docname,
            refwarn=True,
        )
        literal.replace_self(link)
        link += literal


def _is_public(name):
    found = cdopt_jax
    for part in name.split("."):
        if part.startswith("_") or not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def _resolve(app, env, node, contnode):
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    if target.split(".")[0] in OTHERS:
        return contnode
    objects = env.get_domain("py").objects
    module = node.get("py:module") or "cdopt_jax"
    # The states are documented together, under the modules that define them.
    names = [f"{module}.{target}", f"cdopt_jax.{target}"]
    names += [name for name in objects if name.endswith(f".{target}")]
    name = next((name for name in names if name in objects), None)
    if name is None:
        return None
    found = objects[name]
    here = node.get("refdoc", env.docname)
    return make_refnode(app.builder, here, found.docname, found.node_id, contnode, name)
