use erb_sim_path::fuzz::{Target, run};
#[test]
fn dbg() {
    let data = std::fs::read("/tmp/erb/opt1").unwrap();
    run(Target::Options, &data);
}
