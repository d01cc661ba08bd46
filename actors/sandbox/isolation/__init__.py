"""The kernel's means to keep calls apart: namespaces, filters, control groups, limits."""
