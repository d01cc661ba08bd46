"""What the kernel offers to keep calls apart: namespaces, filters, control groups, limits."""
