//! Files of the policy stay hidden from programs although others take their place.

use crate::network::Network;

/// Identities with keys in the places where the usual tools have them: `plain/id.key` as an editor
/// or `mv` replaces it, `live/` as certbot, `mount/` as Kubernetes, and `whole/`, a directory of
/// its own. The certificate of all is `alice.pem`.
const KEYS: [&str; 4] = ["plain/id.key", "live/privkey.pem", "mount/tls.key", "whole/web.key"];

const LAY_OUT: &str = "
lay_out() {
    mkdir plain live archive mount mount/..1 whole; chmod 700 whole
    for at in plain/id.key archive/privkey1.pem mount/..1/tls.key whole/web.key new.key; do
        cp alice.key $at; chmod 600 $at
    done
    ln -s ../archive/privkey1.pem live/privkey.pem
    ln -s ..1 mount/..data; ln -s ..data/tls.key mount/tls.key
    chown -R $1 plain live archive mount whole new.key
}
replace() {
    cp -p new.key plain/.new; mv plain/.new plain/id.key
    cp -p new.key archive/privkey2.pem; ln -sfn ../archive/privkey2.pem live/privkey.pem
    mkdir mount/..2; chown $1 mount/..2; cp -p new.key mount/..2/tls.key
    ln -s ..2 mount/..tmp; mv -T mount/..tmp mount/..data
    cp -p new.key whole/.new; mv whole/.new whole/web.key
}";

fn network() -> Network {
    let mut rules = String::new();
    for (number, key) in KEYS.into_iter().enumerate() {
        rules += &format!(
            "[identity.id{number}]\ncert = \"alice.pem\"\nkey = \"{key}\"\n\
             [[rule]]\nname = \"rule{number}\"\ndirection = \"outbound\"\n\
             remote = \"10.9.8.{number}\"\ntls = {{ trust = \"ca\", identity = \"id{number}\" }}\n"
        );
    }
    Network::new(&[], "").with_rules(&rules)
}

/// What a program reads of every key, after `$changes`, which a shell outside makes.
fn reads(owner: &str, changes: &str) -> String {
    let all = KEYS.join(" ");
    format!(
        "{LAY_OUT}
         lay_out {owner}
         direct cat {all} | grep -c PRIVATE
         run bash -c 'cat {all} 2>/dev/null | grep -c PRIVATE; ls whole | grep -c .
                      echo $PPID >scratch/new; mv scratch/new scratch/begun
                      until [ -e scratch/changed ]; do sleep 0.02; done; sleep 0.5
                      for key in {all}; do cat $key 2>/dev/null | grep -c PRIVATE; done' &
         until [ -e scratch/begun ]; do sleep 0.02; done
         {changes}
         touch scratch/changed; wait $!
         cat {all} | grep -c PRIVATE"
    )
}

#[test]
fn what_takes_the_place_of_a_hidden_file_is_hidden() {
    for (network, owner) in network().for_each_user().into_iter().zip(["54321", "0"]) {
        let said = network.ok(&reads(owner, &format!("replace {owner}")));
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(lines, ["8", "0", "0", "0", "0", "0", "0", "8"], "as {owner}: {said}");
    }
}

#[test]
fn a_helper_that_was_killed_has_a_successor_that_hides_as_well() {
    let kill = "kill -9 $(pgrep -P $(cat scratch/begun) -x tacit-helper); sleep 1; replace 54321";
    let said = network().ok(&reads("54321", kill));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines, ["8", "0", "0", "0", "0", "0", "0", "8"], "{said}");
}

#[test]
fn a_key_that_a_reload_names_is_hidden_from_then_on() {
    let said = network().ok(&format!(
        "{LAY_OUT}
         lay_out 54321
         run bash -c 'touch scratch/begun; until [ -e scratch/changed ]; do sleep 0.02; done
                      cat plain/later.key | grep -c PRIVATE' &
         until [ -e scratch/begun ]; do sleep 0.02; done
         cp -p new.key plain/later.key
         printf '[identity.later]\\ncert = \"alice.pem\"\\nkey = \"plain/later.key\"\\n' >>run.toml
         ordinary ./tacit reload --control $TMPDIR/tacit-run-*/agent.sock >/dev/null
         sleep 0.5; touch scratch/changed; wait $!
         grep -c PRIVATE plain/later.key"
    ));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines, ["0", "2"], "{said}");
}
