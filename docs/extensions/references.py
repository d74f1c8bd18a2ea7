"""Names in docstrings that are written without their module, and other packages' names.

A docstring says `where` and `stiefel.dissolve`, also in modules that do not define them.
Names of other packages stay plain text, since their documentation is elsewhere.
"""

from sphinx.util.nodes import make_refnode

OTHERS = (
    "ArrayTree",  # Chex's
    "jax",
    "jnp",
    "nnx",
    "numpy",
    "optax",
    "scipy",
    "collections",
    "typing",
)


def setup(app):
    """Connect the resolver of names that Sphinx did not find."""
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _resolve(app, env, node, contnode):
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    if target.split(".")[0] in OTHERS:
        return contnode
    objects = env.get_domain("py").objects
    module = node.get("py:module") or "cdopt_jax"
    names = [f"{module}.{target}", f"cdopt_jax.{target}"]
    names += [n for n in objects if n.endswith(f"State") and n.endswith(f".{target}")]
    name = next((name for name in names if name in objects), None)
    if name is None:
        return None
    found = objects[name]
    here = node.get("refdoc", env.docname)
    return make_refnode(
        app.builder, here, found.docname, found.node_id, contnode, name
    )
