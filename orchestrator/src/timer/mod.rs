//! Windows, watermarks and hops: pure, tested on a virtual clock.
