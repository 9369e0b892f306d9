use super::*;

#[test]
fn scratch() {
    let Ok(files) = std::env::var("ATTLS") else { return };
    let map = std::env::var("MAP").ok();
    let bytes: Vec<(String, Vec<u8>)> = files
        .split(' ')
        .map(|f| (f.rsplit('/').next().unwrap().to_owned(), std::fs::read(f).unwrap()))
        .collect();
    let inputs: Vec<Input<'_>> = bytes.iter().map(|(file, bytes)| Input { file, bytes }).collect();
    let map_bytes = map.map(|m| std::fs::read(m).unwrap());
    let map = map_bytes.as_ref().map(|bytes| Input { file: "map.toml", bytes });
    let mut findings = Findings::default();
    let imported = import(&inputs, map, Options::default(), &mut findings);
    for finding in findings.finish() {
        eprintln!("{}", finding.render());
    }
    if std::env::var("EFF").is_ok() {
        eprintln!("{}", imported.effective);
    }
    eprintln!("{}", imported.policy.unwrap_or_else(|| "NONE".to_owned()));
}
