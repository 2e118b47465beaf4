//! Two coordinators, killed and fenced at random, over participants that go wrong in every way there is. On the store and
//! the bus in memory and tokio's stopped clock. Every seed is a story of its own; a failing one is named in the panic.

mod life;
mod shop;
mod story;

use story::Story;

const SEEDS: u64 = 200;
/// Threads that share the seeds; each runs one story at a time.
const THREADS: u64 = 2;

/// `LAPSE_SIMULATION_SEED` runs one seed alone.
#[test]
fn whatever_goes_wrong_every_saga_comes_to_rest_and_effects_happen_at_most_once() {
    if let Ok(seed) = std::env::var("LAPSE_SIMULATION_SEED") {
        Story::tell(seed.parse().expect("a seed is a number"));
        return;
    }
    let first = fastrand::u64(0..1_000_000_000);
    println!("seeds {first} to {}", first + SEEDS - 1);
    let sums: Vec<story::Seen> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let own = (first..first + SEEDS).skip(thread as usize);
                    own.step_by(THREADS as usize).map(Story::tell).sum()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a seed failed, see above"))
            .collect()
    });
    let seen: story::Seen = sums.into_iter().sum();
    println!("{seen:?}");
    seen.has_everything();
}
