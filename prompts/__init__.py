"""How text becomes tokens: routes, context, stop rules."""
