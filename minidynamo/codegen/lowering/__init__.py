"""Tables from ATen operations to loop IR."""
