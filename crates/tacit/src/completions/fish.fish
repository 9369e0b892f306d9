# Names and ids that a running agent knows.
complete -c tacit -n '__fish_seen_subcommand_from close trace' -f -a '(tacit names connections 2>/dev/null)'
complete -c tacit -n '__fish_seen_subcommand_from trace' -f -a '(tacit names rules 2>/dev/null)'
complete -c tacit -n '__fish_seen_subcommand_from show; and __fish_seen_subcommand_from connections' -f -a '(tacit names connections 2>/dev/null)'
complete -c tacit -n '__fish_seen_subcommand_from show; and __fish_seen_subcommand_from policy' -f -a '(tacit names rules 2>/dev/null)'
complete -c tacit -l rule -x -a '(tacit names rules 2>/dev/null)'
complete -c tacit -l run -x -a '(tacit names runs 2>/dev/null)'
