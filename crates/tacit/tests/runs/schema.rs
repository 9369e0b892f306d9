//! Tests the output of `tacit show --json` while a program runs under `tacit run`. The output must
//! conform to the schemas in docs/schema/.

use crate::fits::assert_fits;
use crate::network::Network;
use crate::refused::STAY;

/// Displays that show something of a run.
const SUBJECTS: [&str; 6] = ["runs", "connections", "refused", "costs", "engines", "cpus"];

#[test]
fn displays_of_runs_fit_their_schemas() {
    let server = "start python3 -c 'import socket, time; held = []\n\
                  server = socket.create_server((\"10.9.8.7\", 7000))\n\
                  while True: held.append(server.accept())'\n\
                  await 7000\n";
    let network = Network::new(&[7000], &(STAY.to_owned() + server));
    for path in ["auto", "relay"] {
        assert_displays_fit(&network, path);
    }
}

fn assert_displays_fit(network: &Network, path: &str) {
    let subjects = SUBJECTS.join(" ");
    let shown = network.ok(&format!(
        "RUN_OPTIONS='--path {path}'
         show_all() {{ for what in {subjects}; do echo; echo =$what; show $what --json; done; }}\n\
         refused 'getent hosts absent.example; exec 7<>/dev/tcp/clear.example/7000' show_all",
    ));
    let mut parts = shown.split("\n=").skip(1);
    for subject in SUBJECTS {
        let (title, json) = parts.next().unwrap().split_once('\n').unwrap();
        assert_eq!(title, subject);
        let expected = match subject {
            "refused" => "absent.example",
            "engines" => "\"data-",
            "connections" if path == "auto" => "\"path\": \"handed\"",
            "cpus" if path == "auto" => "\"runs\": []",
            "cpus" => "\"connections\": 1",
            _ => "\"user\"",
        };
        assert!(json.contains(expected), "{expected}: {json}");
        assert_fits(&format!("show-{subject}"), json);
    }
}
