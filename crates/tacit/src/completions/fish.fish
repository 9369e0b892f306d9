# Names and ids that a running agent knows.
function __tacit_names
    set -l words (commandline -opc)
    set -l control
    for at in (seq (count $words))
        if test "$words[$at]" = --control; and test $at -lt (count $words)
            set control --control (string replace -r -- '^~' $HOME $words[(math $at + 1)])
        else if string match -q -- '--control=*' $words[$at]
            set control --control (string replace -r -- '^--control=' '' $words[$at] | string replace -r -- '^~' $HOME)
        end
    end
    tacit names $argv[1] $control 2>/dev/null
end
complete -c tacit -n '__fish_seen_subcommand_from close trace' -f -a '(__tacit_names connections)'
complete -c tacit -n '__fish_seen_subcommand_from trace' -f -a '(__tacit_names rules)'
complete -c tacit -n '__fish_seen_subcommand_from show; and __fish_seen_subcommand_from connections' -f -a '(__tacit_names connections)'
complete -c tacit -n '__fish_seen_subcommand_from show; and __fish_seen_subcommand_from policy' -f -a '(__tacit_names rules)'
complete -c tacit -l rule -x -a '(__tacit_names rules)'
complete -c tacit -l run -x -a '(__tacit_names runs)'
