//! Runs one of the two loops, for whoever counts its instructions: `null-cost <with|without> <rounds>`.

fn main() {
    let mut arguments = std::env::args().skip(1);
    let with = arguments.next().is_some_and(|which| which == "with");
    let rounds = arguments.next().and_then(|rounds| rounds.parse().ok()).unwrap_or(0);
    let run = if with { null_cost::with_markers } else { null_cost::without_markers };
    println!("{}", run(7, rounds));
}
