//! Model checks of the reader slots.
