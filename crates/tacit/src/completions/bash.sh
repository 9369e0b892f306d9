# Names and ids that a running agent knows.
_tacit_with_names() {
    _tacit "$@"
    local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local verb=${COMP_WORDS[1]:-} what=
    case $before in
    --rule) what=rules ;;
    --run) what=runs ;;
    connections) [ "$verb" != show ] || what=connections ;;
    policy) [ "$verb" != show ] || what=rules ;;
    *)
        case $verb in
        close) what=connections ;;
        trace) what="rules connections" ;;
        esac
        ;;
    esac
    case $cur in -*) return ;; esac
    local one
    for one in $what; do
        COMPREPLY+=($(compgen -W "$(tacit names "$one" 2>/dev/null)" -- "$cur"))
    done
}
complete -F _tacit_with_names -o bashdefault -o default tacit
