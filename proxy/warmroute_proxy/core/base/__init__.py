"""What all rooms of the core are built on; it imports none of them."""
