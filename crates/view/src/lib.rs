//! Views of the state, their differences, and the bytes that go on the wire
